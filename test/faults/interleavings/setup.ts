import type { ClaimRequest, Fenced, Owner } from '../../../src/idempotency/store.ts';
import type { Reference, Stands } from '../model/reference.ts';

/** What one search goes through. */
export interface Setup {
  /** Identical requests with one key, all there from the start. */
  requests: number;
  /** All in one engine, as in one process; else each in its own. */
  oneEngine: boolean;
  /** Do duplicates wait for the first one's result? */
  waiting: boolean;
  /** Store commands whose caller gets an error; the command itself happens at any later time, or never. */
  lostCommands: number;
  /** How often the lease that stands may lapse. Without a bound two owners could take over from each other for ever. */
  lapses: number;
  /** Processes that may die. */
  crashes: number;
  /** The store's commands, where the search is to find a mistake in them. */
  broken?: Breakage;
}

/** A store with a mistake in it: undefined leaves a command as the reference does it. */
export interface Breakage {
  /** `seen`: what stood when the command was sent. */
  claim?(
    reference: Reference,
    request: ClaimRequest,
    seen: Stands | undefined,
  ): ReturnType<Reference['claim']> | undefined;
  begin?(reference: Reference, owner: Owner): Fenced | undefined;
}

export const LEASE_MS = 1_000_000_000;
/** Told apart by their length, so that a held timer says what it is for. */
export const WAIT_MS = 10_000;
export const SETTLE_RETRY_MS = 2_000;
