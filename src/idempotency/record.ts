import type { Fingerprint, Token } from '../kernel/brands.ts';

/** A complete answer of the backend, as it came: hop-by-hop fields are taken out when it is sent on. */
export interface StoredResponse {
  status: number;
  /** Names and values in turn, in the backend's order and case. One character a byte (latin1). */
  headers: string[];
  body: Buffer;
}

/**
 * What a scope is settled with: the response, or a tombstone where it was larger than `maxStoredBytes`, or where a person
 * knows that it was executed and not what was answered (status 0).
 */
export type Settlement =
  | { kind: 'response'; response: StoredResponse }
  | { kind: 'tombstone'; status: number };

/** The part of a record that is there from the claim on. */
export interface RecordHead {
  state: 'claimed' | 'executing' | 'settled' | 'in_doubt';
  token: Token;
  fingerprint: Fingerprint;
  /** Wall clock at the first claim, in Unix milliseconds: for people. Retention hangs on the store's own clock. */
  createdAtMs: number;
  /** Wall clock at the last change of state, in Unix milliseconds: for people. */
  changedAtMs: number;
  merchant: string;
  operation: string;
  /** The idempotency key as the merchant sent it: an operator has to be able to name it. */
  key: string;
}

/** What the store holds for a scope. */
export type IdempotencyRecord = RecordHead & { settlement?: Settlement };
