import { Slots } from '../../../src/backend/slots.ts';
import type { Call, EngineObserver, Result } from '../../../src/idempotency/call.ts';
import { Engine } from '../../../src/idempotency/engine.ts';
import type { Store } from '../../../src/ledger/ledger.ts';
import type { Clock } from '../../../src/lib/clock.ts';
import type { Exchange, Slot } from '../../../src/lib/exchange.ts';
import type { Revision } from '../../../src/store/register.ts';
import { newRequest } from '../../support/requests.ts';
import {
  COMPLETE_RETRY_MS,
  LEASE_MS,
  PENDING_PAUSES_MS,
  QUEUE_TIMEOUT_MS,
  type Setup,
  WAIT_MS,
} from './setup.ts';

/** A point at which a process waits for the search: each choice lets it continue in another way. */
export type Gate = Map<string, () => void>;

export const silentObserver: EngineObserver = {
  inDoubt() {},
  stale() {},
  lateAnswer() {},
  sendsAgain() {},
  leaseLost() {},
  completeLate() {},
  completeGivenUp() {},
};

export const lifetimes = {
  leaseMs: LEASE_MS,
  retentionMs: 100 * LEASE_MS,
  inDoubtRetentionMs: 100 * LEASE_MS,
};

export const engineOptions = {
  ...{ leaseMs: LEASE_MS, inDoubtRetentionMs: 100 * LEASE_MS },
  ...{ completeRetryMs: COMPLETE_RETRY_MS, maxWaiters: 10 },
};

export const slotsOf = (maxConnections: number, clock: Clock) =>
  new Slots({ maxConnections, maxQueued: 10, queueTimeoutMs: QUEUE_TIMEOUT_MS }, clock);

const request = newRequest();

/** Names are in angle brackets, so that requests can be renamed wherever they are mentioned. */
export const nameOf = (index: number): string => `<${index}>`;

export const responseOf = (name: string) => ({ status: 201, headers: [], body: Buffer.from(name) });

/** The one request that all processes send. The request id only identifies the process of a start; nothing depends on it. */
export const callOf = (
  name: string,
  { waitMs, inDoubt }: Pick<Call, 'waitMs' | 'inDoubt'>,
  run: Call['run'],
): Call => ({
  ...{ ...request, requestId: name },
  ...{ waitMs, inDoubt, run, statuses: { release: [], unknown: [] } },
});

/** A timer of the engine, which fires when the search chooses it. */
interface HeldTimer {
  ms: number;
  fire(): void;
}

/** A simulated process: an engine, and everything that it waits for. */
export class Process {
  readonly #timers = new Set<HeldTimer>();
  readonly gates = new Map<string, Gate>();
  readonly answers = new Map<string, Result>();
  /** Everything that it has seen, in order. Its state is a function of that and of its fences only. */
  readonly seen: { words: string; revision?: Revision }[] = [];
  readonly requests: readonly string[];
  readonly #engine: Engine;
  #otherRequest: Slot | undefined;
  readonly #merchants = new Map<string, AbortController>();
  isDead = false;
  #nowMs = 0;

  /** @param wallMs moves when the lease lapses. The monotonic clock does not, so that waiting may outlast leases. */
  constructor(
    requests: readonly string[],
    storeOf: (process: Process, clock: Clock) => Store,
    wallMs: () => number,
    { slotTaken }: Setup,
  ) {
    this.requests = requests;
    const clock: Clock = {
      monotonicMs: () => this.#nowMs,
      wallMs,
      after: (ms, act, isBackground) => this.#after(ms, act, isBackground),
    };
    const store = storeOf(this, clock);
    const slots = slotsOf(slotTaken ? 1 : 10, clock);
    if (slotTaken) this.#otherRequest = slots.tryTake();
    this.#engine = new Engine(store, slots, engineOptions, silentObserver, clock);
  }

  start({ waiting, inDoubt }: Setup, run: (name: string, maySend: () => boolean) => Promise<Exchange>): void {
    for (const name of this.requests) {
      const call = callOf(name, { waitMs: waiting ? WAIT_MS : 0, inDoubt }, (maySend) => run(name, maySend));
      const merchant = new AbortController();
      this.#merchants.set(name, merchant);
      const result = this.#engine.handle({ ...call, gone: merchant.signal });
      void result.then((answer) => this.answers.set(name, answer));
    }
  }

  /** Writes that it will repeat because the store has not answered. */
  get pendingWrites(): number {
    return this.#engine.pendingWrites;
  }

  /** Whether it is finished: it will not do anything again. */
  get isOver(): boolean {
    return this.isDead || (this.answers.size === this.requests.length && this.gates.size === 0);
  }

  /** The choices of its timers and its slot; the store poll of a waiting request only if `mayLook`, which is slow to find out. */
  ownChoices(mayLook: () => boolean): [label: string, fire: () => void][] {
    const choices: [string, () => void][] = [];
    const timers = [...this.#timers];
    for (const timer of timers) {
      const turn = timers.filter(({ ms }) => ms === timer.ms).indexOf(timer);
      if (timer.ms === COMPLETE_RETRY_MS) choices.push([`late ${turn}`, timer.fire]);
      else if (timer.ms === QUEUE_TIMEOUT_MS) choices.push([`queued too long ${turn}`, timer.fire]);
      else if (timer.ms === WAIT_MS) choices.push([`waited ${turn}`, () => this.#waitIsOver(timer)]);
      else {
        if (mayLook()) choices.push(['looks', timer.fire]);
        choices.push(['looks for the last time', () => this.#waitIsOver(timer)]);
      }
    }
    if (this.#otherRequest) choices.push(['gets a slot', () => this.#freeSlot()]);
    return choices;
  }

  /** Choices in which merchants without an answer disconnect. */
  departures(): [label: string, leave: () => void][] {
    return [...this.#merchants]
      .filter(([name, merchant]) => !this.answers.has(name) && !merchant.signal.aborted)
      .map(([name, merchant]) => [`${name} leaves`, () => merchant.abort('left')]);
  }

  /**
   * Holds a timer until the search fires it. Renewals, the only timers in the background, are left out: they only delay the moment
   * at which the lease lapses, and the search lets that moment come at any time, or never. A write that is repeated waits at its gate.
   */
  #after(ms: number, act: () => void, isBackground = false): () => void {
    if (isBackground) return () => {};
    if (PENDING_PAUSES_MS.includes(ms)) {
      queueMicrotask(act);
      return () => {};
    }
    const fire = () => {
      this.#timers.delete(timer);
      act();
    };
    const timer = { ms, fire };
    this.#timers.add(timer);
    return () => this.#timers.delete(timer);
  }

  #waitIsOver(timer: HeldTimer): void {
    this.#nowMs += WAIT_MS;
    timer.fire();
  }

  #freeSlot(): void {
    this.#otherRequest?.release();
    this.#otherRequest = undefined;
  }
}

export const scopeUnderTest = request.scope;
