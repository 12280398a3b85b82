import type { Call, EngineObserver, Result } from '../../../src/idempotency/call.ts';
import { Engine } from '../../../src/idempotency/engine.ts';
import type { Exchange } from '../../../src/idempotency/outcome.ts';
import type { Store } from '../../../src/idempotency/store.ts';
import type { Clock } from '../../../src/kernel/clock.ts';
import { newRequest } from '../../support/requests.ts';
import { LEASE_MS, SETTLE_RETRY_MS, WAIT_MS } from './setup.ts';
import type { HeldTimer } from './timers.ts';

/** A point at which a process stands still: each choice lets it go on in another way. */
export type Gate = Map<string, () => void>;

export const nobody: EngineObserver = {
  inDoubt() {},
  stale() {},
  lateAnswer() {},
  sendsAgain() {},
  tookOver() {},
  leaseLost() {},
  settleLate() {},
  settleGivenUp() {},
};

const request = newRequest();

/** Names are in angle brackets, so that requests can be renamed wherever they are mentioned. */
export const nameOf = (index: number): string => `<${index}>`;

export const responseOf = (name: string) => ({ status: 201, headers: [], body: Buffer.from(name) });

/** The one request that all of them send. Nothing hangs on the operation's name: it tells the store whose claim this is. */
export const callOf = (name: string, waitMs: number, run: () => Promise<Exchange>): Call => ({
  ...{ ...request, operation: name },
  ...{ waitMs, releaseStatuses: [], inDoubt: 'hold', run },
});

/** An engine in a process of its own, with all that it waits for. */
export class Process {
  readonly timers = new Set<HeldTimer>();
  readonly gates = new Map<string, Gate>();
  readonly answers = new Map<string, Result>();
  /** All that it has seen, in order: it is a function of that, and of nothing else. */
  readonly seen: string[] = [];
  readonly requests: readonly string[];
  readonly #engine: Engine;
  isDead = false;
  #nowMs = 0;

  constructor(requests: readonly string[], store: Store) {
    this.requests = requests;
    const clock: Clock = { monotonicMs: () => this.#nowMs, wallMs: () => 0 };
    const options = {
      ...{ leaseMs: LEASE_MS, retentionMs: 100 * LEASE_MS },
      ...{ settleRetryMs: SETTLE_RETRY_MS, maxWaiters: 10 },
    };
    this.#engine = new Engine(store, options, nobody, clock);
  }

  start(waitMs: number, run: (name: string) => Promise<Exchange>): void {
    for (const name of this.requests) {
      const call = callOf(name, waitMs, () => run(name));
      void this.#engine.handle(call).then((result) => this.answers.set(name, result));
    }
  }

  get isWaiting(): boolean {
    return this.#engine.waiting > 0;
  }

  /** It will never do anything again. */
  get isOver(): boolean {
    return this.isDead || (this.answers.size === this.requests.length && this.gates.size === 0);
  }

  /** Its timers, as choices; the look of a waiter only where `mayLook`. */
  timerChoices(mayLook: boolean): [label: string, fire: () => void][] {
    const choices: [string, () => void][] = [];
    for (const timer of this.timers) {
      const turn = [...this.timers].filter(({ ms }) => ms === timer.ms).indexOf(timer);
      if (timer.ms === SETTLE_RETRY_MS) choices.push([`late ${turn}`, timer.fire]);
      else if (timer.ms === WAIT_MS) choices.push([`waited ${turn}`, () => this.#waitIsOver(timer)]);
      else if (this.isWaiting && mayLook) choices.push(['look', timer.fire]);
    }
    return choices;
  }

  #waitIsOver(timer: HeldTimer): void {
    this.#nowMs += timer.ms;
    timer.fire();
  }
}

export const scopeUnderTest = request.scope;
