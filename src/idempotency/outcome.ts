import type { Readable } from 'node:stream';
import type { StoredResponse } from './record.ts';

/**
 * How one request to the backend ended, by phase. Whoever runs it must be exact about `not_sent`: it is
 * the licence to run the request again.
 */
export type Exchange =
  /** A complete response. */
  | { kind: 'complete'; response: StoredResponse }
  /** The response grew past the limit: its head, and a stream of the whole body. */
  | { kind: 'oversize'; status: number; headers: string[]; body: Readable }
  /** Surely no byte of the request was sent. */
  | { kind: 'not_sent'; reason: string }
  /** The request may have been sent, and no complete answer came. */
  | { kind: 'unknown'; reason: string; timedOut: boolean };

/** What becomes of the scope. */
export type Decision = 'settle' | 'release' | 'in_doubt';

/** The outcome table of the design, as one function. `releaseStatuses`: the backend says that it did not execute. */
export function decide(exchange: Exchange, releaseStatuses: readonly number[]): Decision {
  switch (exchange.kind) {
    case 'complete':
      return releaseStatuses.includes(exchange.response.status) ? 'release' : 'settle';
    case 'oversize':
      return releaseStatuses.includes(exchange.status) ? 'release' : 'settle';
    case 'not_sent':
      return 'release';
    case 'unknown':
      return 'in_doubt';
  }
}
