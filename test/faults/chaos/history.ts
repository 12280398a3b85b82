import { createWriteStream, type WriteStream } from 'node:fs';
import { finished } from 'node:stream/promises';
import type { CrashPoint } from './crash-point.ts';

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
  | {
      event: 'call';
      id: number;
      atMs: number;
      /** Merchant code and idempotency key, separated by a space. */
      scope: string;
      gateway: number;
      /** Number of the gateway's process: it grows with every restart. */
      life: number;
      /** The kind of call: the merchant's first or retried one, or another request under its key. */
      as: 'merchant' | 'duplicate' | 'impatient' | 'other_amount' | 'last' | 'resolved';
      /** The fault that the backend was asked to apply to this request, if any. */
      fault?: string;
    }
  | { event: 'ended'; id: number; atMs: number; scope: string; ended: Ended }
  /** A gateway's process is about to hand the first byte of a request to the kernel. */
  | { event: 'sent'; atMs: number; scope: string; gateway: number; life: number }
  | {
      event: 'fault' | 'healed';
      atMs: number;
      of: 'gateway' | 'backend' | 'store';
      name: string;
      /** The gateway that the fault hit. */
      gateway?: number;
      /** Of a fault. */
      stopsCompleting?: StopsCompleting;
    }
  /** `unasked`: the suite had not asked it to end (SIGTERM). `at`: the suite killed it exactly there. */
  | {
      event: 'gateway_died';
      atMs: number;
      gateway: number;
      life: number;
      how: string;
      unasked?: true;
      at?: CrashPoint;
    }
  /** All connections to the backend were cut, or the backend was killed. */
  | { event: 'backend_lost'; atMs: number }
  /** The machine ran nothing for `forMs` milliseconds. */
  | { event: 'stalled'; atMs: number; forMs: number }
  /** A message for readers. */
  | { event: 'note'; atMs: number; text: string };

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
