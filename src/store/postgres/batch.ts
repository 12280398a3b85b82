import { digest } from '../../lib/digest.ts';
import { type Connection, failureOf, type Statement } from './connection.ts';

/** The limits of a batch, so that no transaction makes others wait for long. */
const COMMANDS_PER_BATCH = 128;
const BYTES_PER_BATCH = 4 * 1024 * 1024;

/** A command of a batch, as JSON without its number. */
export interface Command {
  json: string;
  resolve(row: Answered): void;
  reject(error: Error): void;
}

/** A statement that writes, in a transaction of its own. */
export interface Change {
  text: string;
  values: unknown[];
  resolve(rows: unknown[][]): void;
  reject(error: Error): void;
}

export type Pending = (Command | Change) & { askedMs: number };

/** What the function `write` returns for a command. */
export type Answered = [
  n: number,
  answer: string,
  held: Buffer | null,
  livesMs: number | null,
  isLeased: boolean | null,
];

/** Takes the next batch of commands from the queue, or the next statement. */
export function nextBatch(queue: Pending[]): Pending[] {
  let bytes = 0;
  let count = 0;
  for (const pending of queue) {
    const isFull = count === COMMANDS_PER_BATCH || bytes >= BYTES_PER_BATCH;
    if (isFull || 'text' in pending) break;
    bytes += pending.json.length;
    count++;
  }
  return queue.splice(0, Math.max(1, count));
}

/** Applies the batches of a schema. */
export class Batches {
  readonly #schema: string;
  readonly #write: Statement;

  constructor(schema: string) {
    this.#schema = schema;
    const text = `SELECT * FROM ${schema}.write($1, $2)`;
    // A pooler may lead to a connection on which a gateway with another schema has prepared its statement.
    this.#write = { name: `oncegate_${digest([text]).slice(0, 16)}`, text };
  }

  /** Answers a batch. If the server refuses it as a whole, sends each of its commands alone, so that one of them fails alone. */
  async apply(connection: Connection, batch: readonly Pending[]): Promise<void> {
    try {
      await this.#send(connection, batch);
    } catch (error) {
      const failure = failureOf(error, this.#schema, true);
      if (batch.length > 1 && !failure.maybeWritten && connection.isOpen)
        for (const pending of batch) await this.apply(connection, [pending]);
      else for (const { reject } of batch) reject(failure);
    }
  }

  async #send(connection: Connection, batch: readonly Pending[]): Promise<void> {
    const [first] = batch;
    if (first && 'text' in first) {
      first.resolve(await connection.run({ name: '', text: first.text }, first.values));
      return;
    }
    const commands = batch as readonly Command[];
    const json = `[${commands.map((command, n) => `{"n":${n},${command.json}}`).join()}]`;
    for (const row of await connection.run<Answered>(this.#write, [json, connection.server]))
      commands[row[0]]?.resolve(row);
  }
}
