/*
 * The batch of commands that the main thread sends to the writer thread. Cloning an object for each command would cost more than
 * the command itself, so a batch is one piece of memory, which both threads share. It has the number of commands, and where the
 * texts begin and end (u32 each); for each command what it is (u8), the number of its values (u8), and the values; and the texts of all
 * commands (latin1), which are written and read in one call.
 */

export const COMMANDS = {
  removed: 0,
  create: 1,
  replace: 2,
  renew: 3,
  endLease: 4,
  mark: 5,
  sweep: 6,
  probe: 7,
};

/** What the writer thread answers to a create or a replace. */
export const ANSWERS = { done: 0, refused: 1, void: 2, closed: 3 };

/** A text is latin1. */
export type Value = null | number | string | Uint8Array;

const HEADER_BYTES = 12;
const NULL = 0;
const NUMBER = 1;
const TEXT = 2;
const BYTES = 3;
/** A value takes up to so many bytes, and those that it consists of. */
const VALUE_BYTES = 9;
const FIRST_BYTES = 65_536;

/** A batch while commands are added to it. */
export class Batch {
  count = 0;
  size = HEADER_BYTES;
  memory: Buffer<SharedArrayBuffer>;
  #view: DataView;
  #texts = '';

  /** @param memory of a batch that was answered */
  constructor(memory = Buffer.from(new SharedArrayBuffer(FIRST_BYTES))) {
    this.memory = memory;
    this.#view = new DataView(memory.buffer);
  }

  /** Returns the place of the command, for {@link remove}. */
  add(command: number, values: readonly Value[]): number {
    this.#reserve(2 + VALUE_BYTES * values.length);
    const place = this.size;
    this.memory[place] = command;
    this.memory[place + 1] = values.length;
    this.size += 2;
    for (const value of values) {
      if (value === null) this.memory[this.size++] = NULL;
      else if (typeof value === 'number') {
        this.memory[this.size] = NUMBER;
        this.#view.setFloat64(this.size + 1, value);
        this.size += 9;
      } else {
        const isText = typeof value === 'string';
        this.memory[this.size] = isText ? TEXT : BYTES;
        this.#view.setUint32(this.size + 1, value.length);
        this.size += 5;
        if (isText) this.#texts += value;
        else {
          this.#reserve(value.length + VALUE_BYTES * values.length);
          this.memory.set(value, this.size);
          this.size += value.length;
        }
      }
    }
    this.count++;
    return place;
  }

  /** The writer thread passes over the command. */
  remove(place: number): void {
    this.memory[place] = COMMANDS.removed;
  }

  /** Ends the batch. */
  finish(): Uint8Array {
    this.#reserve(this.#texts.length);
    this.#view.setUint32(0, this.count);
    this.#view.setUint32(4, this.size);
    this.#view.setUint32(8, this.size + this.memory.write(this.#texts, this.size, 'latin1'));
    return this.memory;
  }

  #reserve(bytes: number): void {
    const needed = this.size + bytes;
    if (needed <= this.memory.length) return;
    const larger = Buffer.from(new SharedArrayBuffer(Math.max(needed, 2 * this.memory.length)));
    this.memory.copy(larger, 0, 0, this.size);
    this.memory = larger;
    this.#view = new DataView(larger.buffer);
  }
}

/** Applies the commands of a batch in their order. Returns their answers. */
export function applyAll(batch: Uint8Array, apply: (command: number, values: Value[]) => unknown): unknown[] {
  const memory = Buffer.from(batch.buffer);
  const view = new DataView(batch.buffer);
  const answers: unknown[] = new Array(view.getUint32(0));
  const texts = memory.toString('latin1', view.getUint32(4), view.getUint32(8));
  let textAt = 0;
  for (let i = 0, at = HEADER_BYTES; i < answers.length; i++) {
    const command = memory[at] as number;
    const values: Value[] = new Array(memory[at + 1] as number);
    at += 2;
    for (let n = 0; n < values.length; n++) {
      const type = memory[at++];
      if (type === NULL) values[n] = null;
      else if (type === NUMBER) {
        values[n] = view.getFloat64(at);
        at += 8;
      } else {
        const length = view.getUint32(at);
        at += 4;
        values[n] = type === TEXT ? texts.slice(textAt, textAt + length) : memory.subarray(at, at + length);
        if (type === TEXT) textAt += length;
        else at += length;
      }
    }
    answers[i] = apply(command, values);
  }
  return answers;
}
