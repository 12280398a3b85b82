// @ts-nocheck until the rules are the reference of this suite
import type { InDoubtPolicy } from '../../../src/idempotency/call.ts';
import type { Completion } from '../../../src/lib/exchange.ts';
import type { Execution, Owner, UnansweredOptions } from '../../../src/store/contract.ts';
import type { Reference, ReferenceRecord } from '../model/reference.ts';

/** The parameters of one search. */
export interface Setup {
  /** The number of identical requests with one key, all present from the beginning. */
  requests: number;
  /** All requests run in one engine, as in one process; otherwise each has a separate engine. */
  oneEngine: boolean;
  /** Whether duplicates wait for the result of the first request. */
  waiting: boolean;
  inDoubt: Extract<InDoubtPolicy, 'hold' | 'retry'>;
  /** Each process has one slot, which another request occupies at first. That request may end at any time, or never. */
  slotTaken: boolean;
  /** The number of store commands whose caller gets an error. The command itself is executed at any later time, or never. */
  lostCommands: number;
  /** How often the current lease may lapse. Without a limit two owners could restart a key for ever. */
  lapses: number;
  /** The number of processes that may die. */
  crashes: number;
  /** How often an operator resolves the key, at any time at which the store allows it. */
  resolutions: number;
  /** The number of merchants that may disconnect before they have an answer. */
  departures: number;
  /** The defect that the search must find. */
  broken?: Breakage;
}

/** A defect of the store or of the gateway. Commands that are undefined work as in the reference. */
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
  /** The owner whose record the store resolves although the owner is alive. */
  resolve?(reference: Reference, owner: Owner): void;
  /** Owners send without the last-moment fence. */
  noFence?: true;
}

export const LEASE_MS = 100_000;
/** The engine's time limits differ, so that a held timer's length says what it is for. */
export const WAIT_MS = 10_000;
export const QUEUE_TIMEOUT_MS = 5_000;
export const COMPLETE_RETRY_MS = 2_000;
