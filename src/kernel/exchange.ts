import type { Readable } from 'node:stream';

/** A complete response of the backend. */
export interface BackendResponse {
  status: number;
  /** Names and values in turn, in the backend's order and case. One character is one byte (latin1). */
  headers: string[];
  body: Buffer;
}

/**
 * How one request to the backend ended, by phase. Callers must be exact about `not_sent`, because it permits the request
 * to be executed again.
 */
export type Exchange =
  | { kind: 'complete'; response: BackendResponse }
  /** The response grew past the limit: its head, and a stream of the whole body. */
  | { kind: 'oversize'; status: number; headers: string[]; body: Readable }
  /** Surely no byte of the request was sent. */
  | { kind: 'not_sent'; reason: string }
  /** The request may have been sent, and there is no complete response. */
  | { kind: 'unknown'; reason: string; timedOut: boolean };

/**
 * What a record is completed with. A tombstone is a completed record without its response: the response was larger than
 * `maxStoredBytes`, or an operator knows that the request was executed and not what was answered (status 0).
 */
export type Completion =
  | { kind: 'response'; response: BackendResponse }
  | { kind: 'tombstone'; status: number };

/** What the backend says became of a transaction. `said` is for people: no body, no header, no secret. */
export type LookupAnswer =
  | { kind: 'executed'; said: string; completion: Completion }
  /** It knows of no such transaction. The request may still be on its way, so `releaseAfterMs` decides when to believe it. */
  | { kind: 'not_executed'; said: string }
  | { kind: 'undecided'; said: string }
  /** No complete answer came. */
  | { kind: 'failed'; said: string };

/** Permission to occupy one connection to the backend. */
export interface Slot {
  /** Gives the slot back. Calling it again does nothing. */
  release(): void;
}

/** A place in the queue for a slot. */
export interface Place {
  /** Resolves when the slot is this place's. */
  readonly slot: Promise<Slot>;
  /** Gives the place up, and the slot if it has been assigned already. */
  leave(): void;
}

/** Where slots come from. */
export interface SlotSource {
  /** How long a request may wait in the queue. Milliseconds. */
  readonly queueTimeoutMs: number;
  /** A free slot, or undefined if there is none or others are waiting for one. */
  tryTake(): Slot | undefined;
  /** A place at the back of the queue, or undefined if the queue is full. */
  queue(): Place | undefined;
}

/** Releases the slot when the exchange has ended: at once, or when the rest of an oversize response has been streamed. */
export function releaseAfter(slot: Slot, exchange: { kind: string; body?: Readable }): void {
  if (exchange.body && !exchange.body.closed) exchange.body.once('close', () => slot.release());
  else slot.release();
}
