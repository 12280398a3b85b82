import { createWriteStream, type WriteStream } from 'node:fs';
import { finished } from 'node:stream/promises';

/** How a call ended, as its merchant saw it. */
export type Ended =
  /** The backend's own answer, or a replay of it. `digest`: SHA-256 over status, end-to-end headers and body. */
  | { kind: 'result'; status: number; digest: string; replayed: boolean; foreign: boolean }
  /** The gateway's own answer. */
  | { kind: 'problem'; status: number; code: string; foreign: boolean }
  /** The connection failed, or the merchant timed out or disconnected. */
  | { kind: 'no_answer'; reason: string };

/** One event of a run; times are milliseconds since its start. */
export type Event =
  /** A request with a key, written when it has ended. */
  | {
      event: 'call';
      atMs: number;
      endedAtMs: number;
      /** The name of the key: merchant code and idempotency key, separated by a space. */
      name: string;
      gateway: number;
      /** Number of the gateway's process: it grows with every restart. */
      life: number;
      /** Another payout under the key, the last call after the run, the one after a resolution; `merchant`: any other. */
      as: 'merchant' | 'other_amount' | 'last' | 'resolved';
      /** The fault that the backend was asked to apply to this request, if any. */
      fault?: string;
      ended: Ended;
    }
  /** A gateway's process is about to hand the first byte of a request to the kernel. */
  | { event: 'sent'; atMs: number; name: string }
  | {
      event: 'fault' | 'healed';
      atMs: number;
      of: 'gateway' | 'backend' | 'store';
      name: string;
      /** The gateway that the fault hit. */
      gateway?: number;
      /** Where results cannot be stored while the fault lasts. */
      stopsCompleting?: StopsCompleting;
    }
  /** `unasked`: the suite had not asked it to end (SIGTERM). */
  | { event: 'gateway_died'; atMs: number; gateway: number; life: number; how: string; unasked?: boolean }
  /** All connections to the backend were cut, or the backend was killed. */
  | { event: 'backend_lost'; atMs: number }
  /** The machine ran nothing for `forMs` milliseconds. */
  | { event: 'stalled'; atMs: number; forMs: number }
  /** A message for readers. */
  | { event: 'note'; atMs: number; text: string };

export type Call = Extract<Event, { event: 'call' }>;

/**
 * Where results cannot be stored while a fault lasts. `everywhere`: in no gateway. `there`: not in the gateway that was hit,
 * which still answers its merchants. `late`: the gateway that was hit is stopped, and stores its results afterwards.
 */
export type StopsCompleting = 'everywhere' | 'there' | 'late';

/** All events of a run, in memory for the checker and in a file for readers: one line of JSON for each event. */
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
