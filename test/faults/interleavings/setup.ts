import type { InDoubtPolicy } from '../../../src/idempotency/call.ts';
import type { Create, Replace, Seen } from '../../../src/store/register.ts';

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
  /** The number of commands to the register whose caller gets an error. The command itself is executed at any later time, or never. */
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

/** A defect of the register, of the rules or of the gateway. What is undefined works. */
export interface Breakage {
  /** What the register does in place of a create. `seen`: what it held when the command was sent. */
  create?(write: Create, held: Seen | undefined, seen: Seen | undefined): Create | Replace;
  /** What the register does in place of a replace. */
  replace?(write: Replace, held: Seen | undefined): Replace;
  /** Operators resolve the key of a living owner. */
  resolvesLiving?: true;
  /** Owners send without the last-moment fence. */
  noFence?: true;
}

export const LEASE_MS = 100_000;
/** The engine's time limits and pauses differ, so that a timer's length says what it is for. */
export const WAIT_MS = 10_000;
export const QUEUE_TIMEOUT_MS = 5_000;
export const COMPLETE_RETRY_MS = 2_000;
/** The pauses before a pending write is repeated. */
export const PENDING_PAUSES_MS = [0, 50, 100, 200, 400, 500];
