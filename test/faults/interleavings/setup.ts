import type { InDoubtPolicy } from '../../../src/idempotency/call.ts';
import type { Execution, Owner, UnansweredOptions } from '../../../src/idempotency/store.ts';
import type { Completion } from '../../../src/kernel/exchange.ts';
import type { Reference, ReferenceRecord } from '../model/reference.ts';

/** What one search goes through. */
export interface Setup {
  /** Identical requests with one key, all there from the start. */
  requests: number;
  /** All in one engine, as in one process; otherwise each in an engine of its own. */
  oneEngine: boolean;
  /** Do duplicates wait for the first one's result? */
  waiting: boolean;
  inDoubt: Extract<InDoubtPolicy, 'hold' | 'retry'>;
  /** Each process has one slot, which another request occupies at first. That one may end at any moment, or never. */
  slotTaken: boolean;
  /** Store commands whose caller gets an error; the command itself happens at any later time, or never. */
  lostCommands: number;
  /** How often the present lease may lapse. Without a bound two owners could restart a key for ever. */
  lapses: number;
  /** Processes that may die. */
  crashes: number;
  /** How often an operator resolves the key, at any moment at which the store allows it. */
  resolutions: number;
  /** Merchants that may leave before they have an answer. */
  departures: number;
  /** The mistake that the search is to find. */
  broken?: Breakage;
}

/** A mistake in the store or in the gateway. Undefined leaves a command as the reference does it. */
export interface Breakage {
  /** `seen`: what the store held when the command was sent. */
  start?(
    reference: Reference,
    execution: Execution,
    seen: ReferenceRecord | undefined,
  ): 'started' | undefined;
  restart?(reference: Reference, execution: Execution): 'ok';
  complete?(reference: Reference, execution: Execution, completion: Completion): 'ok';
  /** The options that the store sees. */
  release?(options: UnansweredOptions | undefined): UnansweredOptions;
  /** The owner that the store believes it resolves, although the present one is alive. */
  resolve?(reference: Reference, owner: Owner): void;
  /** Owners send without asking whether they still may. */
  noFence?: true;
}

export const LEASE_MS = 100_000;
/** The engine's time limits differ, so that a held timer's length says what it is for. */
export const WAIT_MS = 10_000;
export const QUEUE_TIMEOUT_MS = 5_000;
export const COMPLETE_RETRY_MS = 2_000;
