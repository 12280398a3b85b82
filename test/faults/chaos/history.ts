import { createWriteStream, type WriteStream } from 'node:fs';
import { finished } from 'node:stream/promises';

/** How a call ended, as its merchant saw it. */
export type Ended =
  /** The backend's own answer, or a replay of it. `digest`: SHA-256 over status, end-to-end headers and body. */
  | { kind: 'result'; status: number; digest: string; replayed: boolean; foreign: boolean }
  /** The gateway's own answer. */
  | { kind: 'problem'; status: number; code: string; foreign: boolean }
  /** The connection failed, or the merchant had enough of waiting, or hung up. */
  | { kind: 'no_answer'; reason: string };

/** One event of a run; times are milliseconds since its start. */
export type Event =
  | {
      event: 'call';
      id: number;
      atMs: number;
      /** Merchant code and idempotency key, with a space between. */
      scope: string;
      gateway: number;
      /** Which life of the gateway's process. */
      life: number;
      /** What the call was: a merchant's own, or another request under its key. */
      as: 'merchant' | 'duplicate' | 'impatient' | 'other_amount' | 'last' | 'resolved';
      /** What the backend was told to do to this one, if anything. */
      fault?: string;
    }
  | { event: 'ended'; id: number; atMs: number; scope: string; ended: Ended }
  | {
      event: 'fault' | 'healed';
      atMs: number;
      of: 'gateway' | 'backend' | 'store';
      name: string;
      /** Of a fault. */
      stopsSettling?: StopsSettling;
    }
  | {
      event: 'gateway_died';
      atMs: number;
      gateway: number;
      life: number;
      how: string;
      /** From when its disk was full, so that it could store nothing. */
      diskFullFromMs?: number;
    }
  /** All connections to the backend were cut, or the backend was killed. */
  | { event: 'backend_lost'; atMs: number }
  /** For people. */
  | { event: 'note'; atMs: number; text: string };

/** While a fault stands, results cannot be stored: by any gateway, or by the one that it has struck. */
export type StopsSettling = 'everywhere' | 'there';

/** How a gateway ended that had not ended by itself when it had to, and was killed. */
export const HUNG = 'hung';

/** How a gateway ends whose disk is full: by this exit code, after what it could store nothing of. */
export const STORE_FAILED = '74';

/** Everything that happened, in memory for the checker and in a file for people: one line of JSON an event. */
export class History {
  readonly events: Event[] = [];
  readonly #file: WriteStream;
  readonly #startedMs = performance.now();

  constructor(path: string) {
    this.#file = createWriteStream(path, { mode: 0o600 });
  }

  nowMs(): number {
    return Math.round((performance.now() - this.#startedMs) * 10) / 10;
  }

  add(event: Event): void {
    this.events.push(event);
    this.#file.write(`${JSON.stringify(event)}\n`);
  }

  async close(): Promise<void> {
    this.#file.end();
    await finished(this.#file);
  }
}
