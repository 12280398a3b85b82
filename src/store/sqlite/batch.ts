/*
 * The batch of commands that the main thread sends to the writer thread, as one flat piece of memory: structured cloning of an
 * object for each command costs more than the work of the commands. It has the number of commands (u32), and for each of them
 * what it is (u8) and its values.
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

export type Value = null | number | string | Uint8Array;

const NULL = 0;
const NUMBER = 1;
const TEXT = 2;
const BYTES = 3;
/** Of a value without its text or its bytes. */
const LARGEST_VALUE = 9;
const FIRST_BYTES = 65_536;

/** A batch while commands are added to it. */
export class Batch {
  count = 0;
  size = 4;
  #bytes = Buffer.allocUnsafeSlow(FIRST_BYTES);

  /** Returns the place of the command, for {@link remove}. */
  add(command: number, values: readonly Value[]): number {
    this.#reserve(2 + LARGEST_VALUE * values.length);
    const place = this.size;
    this.#bytes[place] = command;
    this.#bytes[place + 1] = values.length;
    this.size += 2;
    for (const value of values) {
      if (value === null) this.#bytes[this.size++] = NULL;
      else if (typeof value === 'number') {
        this.#bytes[this.size] = NUMBER;
        this.size = this.#bytes.writeDoubleLE(value, this.size + 1);
      } else {
        const isText = typeof value === 'string';
        this.#reserve(isText ? 3 * value.length : value.length);
        this.#bytes[this.size] = isText ? TEXT : BYTES;
        const start = this.size + 5;
        const length = isText ? this.#bytes.write(value, start) : value.length;
        if (!isText) this.#bytes.set(value, start);
        this.#bytes.writeUInt32LE(length, this.size + 1);
        this.size = start + length;
      }
    }
    this.count++;
    return place;
  }

  /** The writer thread passes over the command. */
  remove(place: number): void {
    this.#bytes[place] = COMMANDS.removed;
  }

  /** Ends the batch: its memory moves to the writer thread. */
  finish(): Buffer {
    this.#bytes.writeUInt32LE(this.count);
    return this.#bytes;
  }

  /** There is always room for the fixed parts of the values of one more command. */
  #reserve(bytes: number): void {
    const needed = this.size + bytes + LARGEST_VALUE * 255;
    if (needed <= this.#bytes.length) return;
    const larger = Buffer.allocUnsafeSlow(Math.max(needed, 2 * this.#bytes.length));
    this.#bytes.copy(larger, 0, 0, this.size);
    this.#bytes = larger;
  }
}

/** The commands of a batch, in their order. */
export function* commandsIn(bytes: Buffer): Generator<[command: number, values: Value[]]> {
  const count = bytes.readUInt32LE();
  for (let i = 0, at = 4; i < count; i++) {
    const command = bytes[at++] as number;
    const values = new Array<Value>(bytes[at++] as number);
    for (let n = 0; n < values.length; n++) {
      const type = bytes[at++];
      if (type === NULL) values[n] = null;
      else if (type === NUMBER) {
        values[n] = bytes.readDoubleLE(at);
        at += 8;
      } else {
        const end = at + 4 + bytes.readUInt32LE(at);
        values[n] = type === TEXT ? bytes.toString('utf8', at + 4, end) : bytes.subarray(at + 4, end);
        at = end;
      }
    }
    yield [command, values];
  }
}
