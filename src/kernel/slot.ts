import type { Readable } from 'node:stream';

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
