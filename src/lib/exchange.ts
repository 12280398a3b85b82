import type { Readable } from 'node:stream';

/** A complete response of the backend. The executor has removed the hop-by-hop fields. */
export interface BackendResponse {
  status: number;
  /** Names and values in turn, in the backend's order and case. One character is one byte (latin1). */
  headers: string[];
  body: Buffer;
}

/**
 * How one request to the backend ended. Report `not_sent` only if it is certain, because it permits another request to be
 * executed.
 */
export type Exchange =
  | ({ kind: 'complete'; response: BackendResponse } & OfHandler)
  /** The response is larger than the limit. `body` streams all of it, from its first byte. */
  | ({ kind: 'oversize'; status: number; headers: string[]; body: Readable } & OfHandler)
  /** Certainly no byte of the request was sent. */
  | { kind: 'not_sent'; reason: string }
  /**
   * The request may have been sent, and there is no complete response. `late`: how it ends after all, if the program still learns
   * that. `response`: what came until its connection ended in good order, which may have cut it.
   */
  | {
      kind: 'unknown';
      reason: string;
      timedOut: boolean;
      late?: Promise<Exchange>;
      response?: BackendResponse;
    };

/**
 * What came of sending a request: the class of the response's status; `unknown`: there is no complete response; `not_sent`. A label
 * of metrics.
 */
export const RESPONSE_CLASSES = ['2xx', '3xx', '4xx', '5xx', 'unknown', 'not_sent'] as const;
export type ResponseClass = (typeof RESPONSE_CLASSES)[number];

export function classOf(exchange: Exchange): ResponseClass {
  if (exchange.kind === 'complete') return classOfStatus(exchange.response.status);
  return exchange.kind === 'oversize' ? classOfStatus(exchange.status) : exchange.kind;
}

/** @param status of a response that has ended: 200 or more. HTTP has none above 599; a client treats them as 5xx */
export const classOfStatus = (status: number): ResponseClass =>
  status < 300 ? '2xx' : status < 400 ? '3xx' : status < 500 ? '4xx' : '5xx';

/**
 * For a request without a key. Its merchant gets what came, as from the backend itself: nothing is stored, and nothing tells the
 * merchant more than the end of the connection does.
 */
export const asReceived = (exchange: Exchange): Exchange =>
  exchange.kind === 'unknown' && exchange.response
    ? { kind: 'complete', response: exchange.response }
    : exchange;

interface OfHandler {
  /** What the handler said, if the response comes from an embedded handler. */
  said?: Said;
  /** The merchant was answered `outcome_unknown` before. */
  isLate?: boolean;
}

/** What an embedded handler itself says of its execution. `nothing`: its response decides. */
export type Said = 'not_executed' | 'unknown' | 'nothing';

/**
 * What a record is completed with. A tombstone is a completed record without its response: the response was larger than
 * `maxStoredBytes`, or an operator who resolved the key did not know the response (status 0).
 */
export type Completion =
  | { kind: 'response'; response: BackendResponse }
  | { kind: 'tombstone'; status: number };

/** The answer of a lookup: what became of a transaction. `said` is shown to operators: no body, no header, no secret. */
export type LookupAnswer =
  | { kind: 'executed'; said: string; completion: Completion }
  /** The backend does not know the transaction. The first request may still be on the way, so the key is released only after `releaseAfterMs`. */
  | { kind: 'not_executed'; said: string }
  | { kind: 'undecided'; said: string }
  /** There was no complete response. */
  | { kind: 'failed'; said: string };

/** What the backend says of a secret key. `reason` is logged: no body, no header, no secret. */
export type ProbeAnswer =
  | { kind: 'accepted'; merchantCode: string }
  /** The backend says that the secret key is not valid. */
  | { kind: 'refused' }
  /** The backend was not reached, or its answer says neither. */
  | { kind: 'failed'; reason: string };

/** Permission to occupy one connection to the backend. */
export interface Slot {
  /** Returns the slot. A second call does nothing. */
  release(): void;
}

/** Releases the slot when the exchange no longer needs its connection: at once, or when an oversize response has been streamed. */
export function releaseAfter(slot: Slot, exchange: { kind: string; body?: Readable }): void {
  if (exchange.body && !exchange.body.closed) exchange.body.once('close', () => slot.release());
  else slot.release();
}
