import type { RecordHead, Settlement } from './record.ts';

/** What the backend says became of a transaction. `said` is for people: no body, no header, no secret. */
export type LookupAnswer =
  | { kind: 'executed'; said: string; settlement: Settlement }
  /** It knows of none. Whether that can be believed yet is not for it to say. */
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
  /** From the beginning of the doubt to the first question. */
  firstAfterMs: number;
  /** Between two questions, at most. */
  maxPauseMs: number;
}

/** What a question led to. `unknown`: the answer does not decide it, or not yet. */
export type LookupResult = 'settled' | 'released' | 'unknown' | 'failed';
