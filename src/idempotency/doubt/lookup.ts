import type { Completion, RecordHead } from '../store.ts';

/** What the backend says became of a transaction. `said` is for people: no body, no header, no secret. */
export type LookupAnswer =
  | { kind: 'executed'; said: string; completion: Completion }
  /** It knows of no such transaction. The request may still be on its way, so `releaseAfterMs` decides when to believe it. */
  | { kind: 'not_executed'; said: string }
  | { kind: 'undecided'; said: string }
  /** No complete answer came. */
  | { kind: 'failed'; said: string };

/** How an operation's keys in doubt are looked up. */
export interface Lookup {
  /** Asks the backend once. Never throws. */
  ask(transaction: Pick<RecordHead, 'merchant' | 'operation' | 'key'>): Promise<LookupAnswer>;
  /** How long a key must have been in doubt before "not executed" is believed. */
  releaseAfterMs: number;
  /** From when the key is in doubt to the first question. */
  firstAfterMs: number;
  /** Between two questions, at most. */
  maxPauseMs: number;
}

/** The result of a lookup. `unknown`: the answer does not decide it, or not yet. */
export type LookupResult = 'completed' | 'released' | 'unknown' | 'failed';
