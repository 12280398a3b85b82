import type { Result } from '../../../src/idempotency/call.ts';
import { recordIdOf } from '../../../src/ledger/record-id.ts';
import type { Fingerprint } from '../../../src/lib/brands.ts';
import type { Clock } from '../../../src/lib/clock.ts';
import type { Slot } from '../../../src/lib/exchange.ts';
import type { Revision } from '../../../src/store/types.ts';
import { diceOf } from '../dice.ts';
import { type Gateway, QUEUE_TIMEOUT_MS } from '../gateway.ts';
import { FINGERPRINTS, KEYS } from '../keys.ts';
import { Machine, Process } from '../machine.ts';
import type { Timeline } from '../timeline.ts';

/** A point at which a gateway waits for the search: each choice lets it continue in another way. */
export type Gate = Readonly<Record<string, () => void>>;

/** Something that may happen next. `undo`: as if it had not happened. */
export type Choice = readonly [label: string, act: () => void, undo?: () => void];

const [KEY] = KEYS;
export const RECORD_ID = recordIdOf('gateway', 'M-1', KEY);
/** The request that all merchants send. Its id only says whose it is; nothing depends on it. */
export const callOf = (requestId: string) => ({
  ...{ recordId: RECORD_ID, key: KEY, merchant: 'M-1', operation: 'withdraw', requestId },
  fingerprint: FINGERPRINTS[0] as Fingerprint,
});

export const LEASE_MS = 100_000;
const WAIT_MS = 10_000;
/** The time limits differ, so that a timer's length says what it is for. */
export const PLAN = {
  ...{ leaseMs: LEASE_MS, retentionMs: 100 * LEASE_MS, inDoubtRetentionMs: 100 * LEASE_MS },
  ...{ completeRetryMs: 3_000, responseTimeoutMs: 20_000, abandonAfterMs: undefined, releaseAfterMs: 0 },
};
/** The pauses before a pending write is repeated. */
const PENDING_PAUSES_MS = [0, 50, 100, 200, 400, 500];

/** A timer of the engine, which fires when the search chooses it. */
interface HeldTimer {
  ms: number;
  fire(): void;
}

/** The process of a gateway, and everything that it waits for. */
export class Host extends Process {
  readonly gates = new Map<string, Gate>();
  readonly answers = new Map<string, Result>();
  readonly newAnswers: [request: string, answer: Result][] = [];
  /** Everything that it has seen, in order. Its state is a function of that and of its fences only. */
  readonly seen: { words: string; revision?: Revision }[] = [];
  /** The process has begun a start or a restart. */
  hasStarted = false;
  /** What the register held when the key was in flight. '': it holds that now. */
  sawInFlight: string | undefined;
  readonly requests: readonly string[];
  readonly gateway: Gateway;
  readonly #timers = new Set<HeldTimer>();
  readonly #merchants = new Map<string, AbortController>();
  /** A request that has the only slot at first. */
  #otherRequest: Slot | undefined;
  #waitedMs = 0;

  /** The wall clock moves when a lease lapses. The monotonic one does not, so that waiting may outlast leases. */
  override readonly clock: Clock = {
    wallMs: () => this.machine.wallMs,
    monotonicMs: () => this.#waitedMs,
    after: (ms, act, isBackground) => this.#hold(ms, act, isBackground),
  };

  constructor(
    requests: readonly string[],
    timeline: Timeline,
    isSlotTaken: boolean,
    gatewayOf: (host: Host) => Gateway,
  ) {
    const name = requests.join();
    super(new Machine(timeline, { wallAheadMs: 0, rate: 1 }, diceOf(0, name)), name, timeline, 0);
    this.requests = requests;
    this.gateway = gatewayOf(this);
    if (isSlotTaken) this.#otherRequest = this.gateway.slots.tryTake();
  }

  /** All merchants send their requests. */
  begin(isWaiting: boolean): void {
    for (const name of this.requests) {
      const merchant = new AbortController();
      this.#merchants.set(name, merchant);
      const call = { ...callOf(name), waitMs: isWaiting ? WAIT_MS : 0, gone: merchant.signal };
      void this.gateway.handle(call).then((answer) => {
        this.answers.set(name, answer);
        this.newAnswers.push([name, answer]);
      });
    }
  }

  /** A merchant was told a result. */
  get hasCompleted(): boolean {
    return [...this.answers.values()].some(
      (answer) => answer.kind === 'executed' && answer.decision === 'complete',
    );
  }

  /** Whether it is finished: it will not do anything again. */
  get isOver(): boolean {
    return this.isDead || (this.answers.size === this.requests.length && this.gates.size === 0);
  }

  /** The choices of its timers and its slot; the store poll of a waiting request only if `mayLook`, which is slow to find out. */
  *ownChoices(mayLook: () => boolean): Iterable<Choice> {
    const timers = [...this.#timers];
    for (const timer of timers) {
      const turn = timers.filter(({ ms }) => ms === timer.ms).indexOf(timer);
      if (timer.ms === PLAN.completeRetryMs) yield [`late ${turn}`, timer.fire];
      else if (timer.ms === QUEUE_TIMEOUT_MS) yield [`queued too long ${turn}`, timer.fire];
      else if (timer.ms === WAIT_MS) yield [`waited ${turn}`, () => this.#waitIsOver(timer)];
      else {
        if (mayLook()) yield ['looks', timer.fire];
        yield ['looks for the last time', () => this.#waitIsOver(timer)];
      }
    }
    if (this.#otherRequest) yield ['gets a slot', () => this.#freeSlot()];
  }

  /** Choices in which merchants without an answer disconnect. */
  *departures(left: { departures: number }): Iterable<Choice> {
    if (left.departures === 0) return;
    for (const [name, merchant] of this.#merchants) {
      if (this.answers.has(name) || merchant.signal.aborted) continue;
      const leave = () => {
        left.departures--;
        merchant.abort('left');
      };
      yield [`${name} leaves`, leave];
    }
  }

  /**
   * Holds a timer until the search fires it. Left out are renewals, the only timers in the background: they only delay the moment at
   * which the lease lapses, and the search lets that moment come at any time, or never. So is the time limit of the backend, which
   * ends as a reset does. A write that is repeated waits at its gate.
   */
  #hold(ms: number, act: () => void, isBackground = false): () => void {
    if (isBackground || ms === PLAN.responseTimeoutMs) return () => {};
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
    this.#waitedMs += WAIT_MS;
    timer.fire();
  }

  #freeSlot(): void {
    this.#otherRequest?.release();
    this.#otherRequest = undefined;
  }
}
