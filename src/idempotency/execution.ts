import type { DoubtLookups } from '../doubts/lookups.ts';
import type { Store } from '../ledger/ledger.ts';
import { newExecution } from '../ledger/record-id.ts';
import { type Clock, within } from '../lib/clock.ts';
import { InFlightCounter } from '../lib/collections.ts';
import { type Completion, type Exchange, releaseAfter, type Slot } from '../lib/exchange.ts';
import type { Random } from '../lib/random.ts';
import {
  type Execution,
  type PeekAnswer,
  StoreUnavailable,
  UnreadableRecord,
  type Written,
} from '../store/types.ts';
import type { Emit } from '../telemetry/emit.ts';
import type { Call, EngineOptions, Result } from './call.ts';
import type { CircuitBreaker } from './circuit-breaker.ts';
import { fenceFrom, Renewals } from './fence-and-lease.ts';
import { causeOf, completionOf, decideFor, digestOf } from './outcome.ts';
import { PendingWrites } from './pending-writes.ts';

/** This request has a slot, and owns the record unless its call has `settle`. It may be sent while `maySend` returns true. */
export interface Started {
  kind: 'started';
  execution: Execution;
  slot: Slot;
  maySend: () => boolean;
  /** An earlier request with this key may have been executed (`inDoubt: retry`). */
  again: boolean;
}

interface Completing {
  write(): Promise<Written>;
  ended(answer: Written | undefined): void;
}

export type NotStarted = Extract<Result, { kind: 'store_unavailable' | 'overloaded' | 'closing' }>;
export type Found = Started | PeekAnswer | NotStarted;

/**
 * start → run → complete, for one request that leads its key and has a slot.
 *
 * Nothing is sent before the start is durable. After it, the key is released only if the backend surely did not execute. If that is
 * unknown, the key is in doubt. A call with `settle` has no start, fence or lease: the handler runs in a transaction of the
 * application's database, which also writes the record.
 */
export class Executions {
  readonly #store: Store;
  readonly #options: EngineOptions;
  readonly #emit: Emit;
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #breaker: CircuitBreaker;
  readonly #lookups: DoubtLookups | undefined;
  readonly #pending: PendingWrites;
  readonly #renewals: Renewals;
  readonly #running = new InFlightCounter();

  constructor(
    store: Store,
    options: EngineOptions,
    emit: Emit,
    clock: Clock,
    random: Random,
    breaker: CircuitBreaker,
    lookups: DoubtLookups | undefined,
  ) {
    this.#store = store;
    this.#options = options;
    this.#emit = emit;
    this.#clock = clock;
    this.#random = random;
    this.#breaker = breaker;
    this.#lookups = lookups;
    this.#pending = new PendingWrites(clock);
    this.#renewals = new Renewals({ store, leaseMs: options.leaseMs, emit, clock });
  }

  get running(): number {
    return this.#running.count;
  }

  get pendingWrites(): number {
    return this.#pending.count;
  }

  /** Creates the record, unless the call has `settle`. The fence counts from before the command. Without a start the slot is released. */
  async start(call: Call, slot: Slot): Promise<Found> {
    const execution = newExecution(call, this.#random.token());
    if (call.settle) return await this.#peekBeforeTransaction(call, execution, slot);
    const maySend = fenceFrom(this.#clock, this.#options.leaseMs);
    const step = call.spans?.begin('start');
    try {
      const answer = await this.#store.start(execution);
      step?.end(answer.kind);
      if (answer.kind === 'started') {
        this.#breaker.succeeded();
        return { kind: 'started', execution, slot, maySend, again: false };
      }
      slot.release();
      this.#breaker.notTried();
      return answer;
    } catch (cause) {
      step?.end('failed', errorOf(cause));
      slot.release();
      if (cause instanceof UnreadableRecord) this.#breaker.notTried();
      else this.#breaker.failed();
      if (!isMaybeWritten(cause)) return await this.readInstead(call, cause);
      this.#takeBack(execution);
      return { kind: 'store_unavailable', cause };
    }
  }

  /** Answers what the store holds. If that is nothing, the handler's transaction may run, and writes the record. */
  async #peekBeforeTransaction(call: Call, execution: Execution, slot: Slot): Promise<Found> {
    this.#breaker.notTried();
    const found = await this.peek(call);
    if (found.kind === 'absent')
      return { kind: 'started', execution, slot, maySend: () => true, again: false };
    slot.release();
    return found;
  }

  /** Makes this call the owner of a record in doubt, so that it is sent again. Releases the slot if it fails. Never with `settle`. */
  async restart(call: Call, slot: Slot): Promise<Found> {
    const execution = newExecution(call, this.#random.token());
    const maySend = fenceFrom(this.#clock, this.#options.leaseMs);
    const step = call.spans?.begin('restart');
    try {
      const answer = await this.#store.restart(execution);
      step?.end(answer);
      if (answer === 'ok') {
        this.#emit('sent_again', call);
        return { kind: 'started', execution, slot, maySend, again: true };
      }
      // The record is not in doubt. If its owner is dead, `start` marks it in doubt. Otherwise `start` answers what it means now.
      return await this.start(call, slot);
    } catch (cause) {
      step?.end('failed', errorOf(cause));
      slot.release();
      if (isMaybeWritten(cause)) this.#takeBack(execution);
      return { kind: 'store_unavailable', cause };
    }
  }

  /** Sends the request and writes what became of it: from a durable start to a durable result. With `settle`, the transaction does both. */
  async run(call: Call, { execution, slot, maySend, again }: Started): Promise<Result> {
    this.#running.begin();
    try {
      if (call.settle) return await this.#runTransaction(call, call.settle, slot);
      const stopRenewing = this.#renewals.keep(call, execution);
      let exchange: Exchange;
      const fence = call.inDoubt === 'hold' ? maySend : await this.#fenceIfOwner(execution, maySend);
      try {
        exchange = fence ? await call.run(fence) : NOT_OWNER;
      } catch (error) {
        exchange = brokenRun(error);
      }
      releaseAfter(slot, exchange);
      const decision = decideFor(call.statuses, exchange, again);
      if (decision === 'complete') {
        const completing = this.#completing(call, execution, exchange, stopRenewing);
        const step = call.spans?.begin('complete');
        let answer: Written | 'late';
        try {
          answer = await completing.write();
          completing.ended(answer);
        } catch (cause) {
          answer = await this.#repeatComplete(call, completing, cause);
        }
        step?.end(answer, answer === 'late' ? 'store_unavailable' : undefined);
        if (answer === 'stale') return await this.#superseded(call, exchange);
        return { kind: 'executed', exchange, decision, stored: answer === 'ok' };
      }
      stopRenewing();
      const step = call.spans?.begin(decision === 'release' ? 'release' : 'mark_in_doubt');
      if (decision === 'release') await this.#release(call, execution);
      else await this.#leaveInDoubt(call, execution, exchange);
      step?.end('ended');
      if (exchange.kind === 'unknown')
        void exchange.late?.then((late) => this.#heal(call, execution, late, again));
      return { kind: 'executed', exchange, decision, stored: false };
    } finally {
      this.#running.end();
    }
  }

  /** The handler runs in its transaction, so there is no fence, lease or write here. */
  async #runTransaction(call: Call, settle: NonNullable<Call['settle']>, slot: Slot): Promise<Result> {
    const exchange = await call.run(() => true).catch(brokenRun);
    releaseAfter(slot, exchange);
    return await settle(exchange);
  }

  /**
   * A lookup or a retry may have released or restarted the key while this machine was frozen with both its clocks, which the
   * fence cannot notice. So the record is read once more. If it is still this owner's, the request may be sent for as
   * long as the record's age on the store's clock shows that the owner is alive, counted from before the read; never after the fence.
   *
   * @returns the fence, unless this execution may have lost the key. Then nothing may be sent
   */
  async #fenceIfOwner(execution: Execution, maySend: () => boolean): Promise<(() => boolean) | undefined> {
    const askedMs = this.#clock.monotonicMs();
    const aliveForMs = await this.#store.aliveForMs(execution).catch(() => 0);
    const isAlive = () => this.#clock.monotonicMs() - askedMs < aliveForMs;
    return isAlive() ? () => isAlive() && maySend() : undefined;
  }

  /** Undoes a start or a restart under which nothing was sent. */
  takeBack({ execution, slot }: Started): void {
    slot.release();
    this.#takeBack(execution);
  }

  #takeBack(execution: Execution): void {
    void this.#repeat(() => this.#store.takeBack(execution));
  }

  /**
   * `write` stores how the exchange ended, and can be repeated. `ended` gets the store's answer, or undefined if the write was given up.
   * An exchange that `isLate` ends after its merchant was told `outcome_unknown`. The merchant may retry for `inDoubtRetentionMs`, so
   * the record is then kept for as long as one that was in doubt.
   */
  #completing(call: Call, execution: Execution, exchange: Exchange, stopRenewing = () => {}): Completing {
    const completion = completionOf(exchange);
    const wasTold = 'isLate' in exchange && exchange.isLate === true;
    return {
      write: () => this.#store.complete(execution, completion, wasTold),
      ended: (answer: Written | undefined) => {
        stopRenewing();
        if (answer === undefined) this.#emit('complete_given_up', call);
        if (answer === 'stale') void this.#refused(call, completion);
      },
    };
  }

  /**
   * Stores a response, and repeats that until the store answers or the write is given up. `late`: the store did not answer within
   * `completeRetryMs`; the write is repeated in the background.
   */
  async #repeatComplete(call: Call, { write, ended }: Completing, cause: unknown): Promise<Written | 'late'> {
    const repeated = this.#repeat(write);
    void repeated.then(ended);
    const answer = await within(this.#clock, repeated, this.#options.completeRetryMs);
    if (answer !== undefined) return answer;
    const reason = cause instanceof Error ? cause.message : 'no answer';
    this.#emit('complete_late', { ...call, reason });
    return 'late';
  }

  #repeat(write: () => Promise<Written>): Promise<Written | undefined> {
    return this.#pending.add(write, this.#options.inDoubtRetentionMs);
  }

  /** The result of this execution was refused: the key has another one by now. */
  async #refused(call: Call, completion: Completion): Promise<void> {
    this.#emit('stale', { ...call, write: 'complete' });
    const stored = await this.#store
      .get(call.recordId)
      .then(digestOf, () => ({ state: 'unreadable' as const }));
    const late = digestOf({ state: 'completed', completion });
    this.#emit('late_answer', { ...call, late, stored });
  }

  /** The backend surely did not execute. */
  async #release(call: Call, execution: Execution): Promise<void> {
    try {
      const answer = await this.#store.release(execution);
      if (answer === 'stale') this.#emit('stale', { ...call, write: 'release' });
    } catch {
      void this.#repeat(() => this.#store.release(execution));
    }
  }

  async #leaveInDoubt(call: Call, execution: Execution, exchange: Exchange): Promise<void> {
    const reason = causeOf(exchange);
    if (exchange.kind === 'unknown')
      this.#emit('in_doubt', { ...call, cause: exchange.timedOut ? 'timeout' : 'connection', reason });
    else if (exchange.kind !== 'not_sent') this.#emit('in_doubt', { ...call, cause: 'status', reason });
    // A failed write is not repeated: once the lease lapses, the key is in doubt.
    const answer = await this.#store.leaveInDoubt(execution, reason.slice(0, MAX_CAUSE)).catch(() => 'ok');
    if (answer === 'stale') this.#emit('stale', { ...call, write: 'in_doubt' });
    if (call.inDoubt === 'lookup') this.#lookups?.lookUpLater(call, execution.token);
  }

  /** An execution in doubt has ended late. Completes or frees the key, unless an operator or a lookup has resolved it. */
  async #heal(call: Call, execution: Execution, late: Exchange, again: boolean): Promise<void> {
    // Its merchant was told `outcome_unknown`, even if the store does not know of the doubt.
    const exchange = Object.assign(late, { isLate: true });
    if (exchange.kind === 'oversize') exchange.body.destroy();
    const decision = decideFor(call.statuses, exchange, again);
    if (decision === 'release') await this.#release(call, execution);
    if (decision !== 'complete') return;
    await this.#repeatComplete(call, this.#completing(call, execution, exchange), undefined);
  }

  /** Another execution or an operator has replaced the token: the merchant gets what is stored, or `outcome_unknown`. */
  async #superseded(call: Call, exchange: Exchange): Promise<Result> {
    if (exchange.kind === 'oversize') exchange.body.destroy();
    const found = await this.peek(call);
    if (found.kind === 'completed')
      return { kind: 'replayed', response: found.response, requestId: found.requestId };
    if (found.kind === 'tombstone') return found;
    const reason = 'another execution owns the record';
    const unknown: Exchange = { kind: 'unknown', reason, timedOut: false };
    return { kind: 'executed', exchange: unknown, decision: 'in_doubt', stored: false };
  }

  /** Reads the record where no start is possible. An absent record becomes `store_unavailable`. */
  async readInstead(call: Call, cause: unknown): Promise<PeekAnswer | NotStarted> {
    const found = await this.peek(call);
    return found.kind === 'absent' ? { kind: 'store_unavailable', cause } : found;
  }

  /** @param options `isPoll`: one of many reads of a call that waits. Then the wait is the step in the trace, not the read */
  async peek(call: Call, { isPoll = false } = {}): Promise<PeekAnswer | NotStarted> {
    const step = isPoll ? undefined : call.spans?.begin('peek');
    try {
      const found = await this.#store.peek(call);
      step?.end(found.kind);
      return found;
    } catch (cause) {
      step?.end('failed', errorOf(cause));
      return { kind: 'store_unavailable', cause };
    }
  }

  async close(ms: number): Promise<void> {
    await this.#pending.close(ms);
    this.#renewals.close();
  }
}

/** Longest cause of a doubt that a record holds. */
const MAX_CAUSE = 255;

/** Why the store did not answer, in a word for traces. */
const errorOf = (cause: unknown): string => (cause instanceof Error ? cause.name : 'unknown');

const isMaybeWritten = (cause: unknown): boolean =>
  !(cause instanceof StoreUnavailable) || cause.maybeWritten;

const NOT_OWNER: Exchange = { kind: 'not_sent', reason: 'the key may have another owner' };

/** How an exchange ended whose `run` has thrown: it is unknown whether the request was sent. */
const brokenRun = (error: unknown): Exchange => ({
  kind: 'unknown',
  reason: error instanceof Error ? error.name : 'unknown error',
  timedOut: false,
});
