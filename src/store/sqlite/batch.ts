/*
 * The batch of commands that the main thread sends to the writer thread. Cloning commands would cost a third of a payout, so a
 * batch is one piece of memory, which both threads share. It has where the texts begin and end (u32 each); for each command what it
 * is (u8), the number of its values (u8), and the values; and the texts of all commands (latin1), which are written and read in one
 * call.
 */

export const COMMANDS = { write: 0, renew: 1, endLease: 2, visit: 3, sweep: 4, probe: 5 };

/** What the writer thread answers to a write. */
export const ANSWERS = { done: 0, refused: 1, void: 2, closed: 3 };

/** A text is latin1. */
export type Value = null | number | string | Uint8Array;

const HEADER_BYTES = 8;
const NULL = 0;
const NUMBER = 1;
const TEXT = 2;
const BYTES = 3;
/** A value is its type (u8), and the number or its length (f64). Bytes follow at once. */
const VALUE_BYTES = 9;
const FIRST_BYTES = 65_536;
/** A batch does not keep more memory than this for later. */
const BYTES_KEPT = 1024 * 1024;

/** A batch while commands are added to it. It can be filled again when the thread has answered. */
export class Batch {
  size = HEADER_BYTES;
  #texts = '';
  #memory = newMemory(FIRST_BYTES);
  #view = new DataView(this.#memory.buffer);

  clear(): void {
    this.size = HEADER_BYTES;
    this.#texts = '';
    if (this.#memory.length > BYTES_KEPT) this.#use(newMemory(FIRST_BYTES));
  }

  add(command: number, values: readonly Value[]): void {
    let bytes = 2 + VALUE_BYTES * values.length + this.#texts.length;
    for (const value of values) if (value !== null && typeof value !== 'number') bytes += value.length;
    // All at once: half a command that finds no memory would spoil those behind it, and they could get its answer.
    this.#reserve(bytes);
    this.#memory[this.size++] = command;
    this.#memory[this.size++] = values.length;
    for (const value of values) {
      if (value === null) this.#put(NULL, 0);
      else if (typeof value === 'number') this.#put(NUMBER, value);
      else if (typeof value === 'string') {
        this.#put(TEXT, value.length);
        this.#texts += value;
      } else {
        this.#put(BYTES, value.length);
        this.#memory.set(value, this.size);
        this.size += value.length;
      }
    }
  }

  finish(): Uint8Array {
    this.#view.setUint32(0, this.size);
    this.#view.setUint32(4, this.size + this.#memory.write(this.#texts, this.size, 'latin1'));
    return this.#memory;
  }

  #put(type: number, value: number): void {
    this.#memory[this.size] = type;
    this.#view.setFloat64(this.size + 1, value);
    this.size += VALUE_BYTES;
  }

  #reserve(bytes: number): void {
    const needed = this.size + bytes;
    if (needed <= this.#memory.length) return;
    const larger = newMemory(Math.max(needed, 2 * this.#memory.length));
    this.#memory.copy(larger, 0, 0, this.size);
    this.#use(larger);
  }

  #use(memory: Buffer<SharedArrayBuffer>): void {
    this.#memory = memory;
    this.#view = new DataView(memory.buffer);
  }
}

const newMemory = (bytes: number) => Buffer.from(new SharedArrayBuffer(bytes));

/** Applies the commands of a batch in their order. Returns their answers. */
export function applyAll(batch: Uint8Array, apply: (command: number, values: Value[]) => unknown): unknown[] {
  const memory = Buffer.from(batch.buffer);
  const view = new DataView(batch.buffer);
  const answers: unknown[] = [];
  const textsAt = view.getUint32(0);
  const texts = memory.toString('latin1', textsAt, view.getUint32(4));
  let textAt = 0;
  for (let at = HEADER_BYTES; at < textsAt; ) {
    const command = memory[at++] as number;
    const values: Value[] = new Array(memory[at++] as number);
    for (let n = 0; n < values.length; n++) {
      const type = memory[at];
      const value = view.getFloat64(at + 1);
      at += VALUE_BYTES;
      if (type === NULL) values[n] = null;
      else if (type === NUMBER) values[n] = value;
      else if (type === TEXT) {
        values[n] = texts.slice(textAt, textAt + value);
        textAt += value;
      } else {
        values[n] = memory.subarray(at, at + value);
        at += value;
      }
    }
    answers.push(apply(command, values));
  }
  return answers;
}
