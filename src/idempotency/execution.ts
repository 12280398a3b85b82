import type { DoubtLookups } from '../doubts/lookups.ts';
import type { Store } from '../ledger/ledger.ts';
import type { Clock } from '../lib/clock.ts';
import { type Exchange, releaseAfter, type Slot } from '../lib/exchange.ts';
import { newToken } from '../lib/random.ts';
import { Tally } from '../lib/roster.ts';
import {
  type Execution,
  type Fenced,
  type PeekAnswer,
  StoreUnavailable,
  UnreadableRecord,
} from '../store/contract.ts';
import type { Call, EngineObserver, Result } from './call.ts';
import { fenceFrom, Renewals } from './lease.ts';
import { completionOf, type Decision, decide, statusOf } from './outcome.ts';
import { RecordWriter } from './record-writer.ts';
import type { WriteGate } from './write-gate.ts';

export interface ExecutionOptions {
  /** How long the lease lives without being renewed. */
  leaseMs: number;
  inDoubtRetentionMs: number;
  /** How long a merchant waits for the response while the store does not acknowledge it. */
  completeRetryMs: number;
}

/** This request owns the scope and has a slot. It may be sent while `maySend` returns true. */
export interface Started {
  kind: 'started';
  execution: Execution;
  slot: Slot;
  maySend: () => boolean;
  /** An earlier request with this key may have been executed (`inDoubt: retry`). */
  again: boolean;
}

export type NotStarted = Extract<Result, { kind: 'store_unavailable' | 'overloaded' | 'closing' }>;
export type Found = Started | PeekAnswer | NotStarted;

export interface ExecutionParts {
  store: Store;
  observer: EngineObserver;
  clock: Clock;
  gate: WriteGate;
  lookups: DoubtLookups | undefined;
}

/**
 * start → run → complete, for one request that leads its scope and has a slot.
 *
 * Nothing is sent before the start is durable. After it, the key is released only if the backend surely did not execute.
 * If that is unknown, the key is in doubt.
 */
export class Executions {
  readonly #store: Store;
  readonly #leaseMs: number;
  readonly #observer: EngineObserver;
  readonly #clock: Clock;
  readonly #gate: WriteGate;
  readonly #lookups: DoubtLookups | undefined;
  readonly #writer: RecordWriter;
  readonly #renewals: Renewals;
  readonly #running = new Tally();

  constructor(options: ExecutionOptions, { store, observer, clock, gate, lookups }: ExecutionParts) {
    this.#store = store;
    this.#leaseMs = options.leaseMs;
    this.#observer = observer;
    this.#clock = clock;
    this.#gate = gate;
    this.#lookups = lookups;
    this.#writer = new RecordWriter(store, options, observer, clock);
    this.#renewals = new Renewals(store, options.leaseMs, observer, clock);
  }

  get running(): number {
    return this.#running.count;
  }

  /** Writes that are repeated because the store has not answered. */
  get pendingWrites(): number {
    return this.#writer.pendingWrites;
  }

  /** Creates the record. The fence counts from before the store's command. Releases the slot unless the call has started. */
  async start(call: Call, slot: Slot): Promise<Found> {
    const execution = executionOf(call);
    const maySend = fenceFrom(this.#clock, this.#leaseMs);
    const step = call.spans?.begin('start');
    try {
      const answer = await this.#store.start(execution);
      step?.end(answer.kind);
      if (answer.kind === 'started') {
        this.#gate.succeeded();
        return { kind: 'started', execution, slot, maySend, again: false };
      }
      slot.release();
      this.#gate.notTried();
      return answer;
    } catch (cause) {
      step?.end('failed', errorOf(cause));
      slot.release();
      if (cause instanceof UnreadableRecord) this.#gate.notTried();
      else this.#gate.failed();
      if (!isMaybeWritten(cause)) return await this.readInstead(call, cause);
      this.#writer.takeBack(execution);
      return { kind: 'store_unavailable', cause };
    }
  }

  /** Makes this call the owner of a record in doubt. It is then sent a second time. */
  async restart(call: Call, slot: Slot): Promise<Found> {
    const execution = executionOf(call);
    const maySend = fenceFrom(this.#clock, this.#leaseMs);
    const step = call.spans?.begin('restart');
    try {
      const answer = await this.#store.restart(execution);
      step?.end(answer);
      if (answer === 'ok') {
        this.#observer.sendsAgain(call);
        return { kind: 'started', execution, slot, maySend, again: true };
      }
      // The record is not in doubt. If its owner is dead, `start` marks it in doubt. Otherwise `start` says what it is now.
      return await this.start(call, slot);
    } catch (cause) {
      step?.end('failed', errorOf(cause));
      slot.release();
      if (isMaybeWritten(cause)) this.#writer.takeBack(execution);
      return { kind: 'store_unavailable', cause };
    }
  }

  /** Sends the request and writes what became of it: from a durable start to a durable result. */
  async run(call: Call, { execution, slot, maySend, again }: Started): Promise<Result> {
    this.#running.begin();
    const stopRenewing = this.#renewals.keep(call, execution);
    try {
      let exchange: Exchange;
      const fence = call.inDoubt === 'hold' ? maySend : await this.#askOwner(execution, maySend);
      try {
        exchange = fence ? await call.run(fence) : NOT_OWNER;
      } catch (error) {
        exchange = brokenRun(error);
      }
      releaseAfter(slot, exchange);
      const decision = decideFor(call, exchange, again);
      if (decision === 'complete') {
        const completion = completionOf(exchange);
        const write = () => this.#writer.complete(execution, completion, exchange);
        const step = call.spans?.begin('complete');
        let stored: Fenced | undefined;
        let cause: unknown;
        try {
          stored = await write();
        } catch (error) {
          cause = error;
        }
        if (stored) this.#writer.completed(call, completion, stored, stopRenewing);
        const answer =
          stored ?? (await this.#writer.repeatComplete(call, completion, write, stopRenewing, cause));
        step?.end(answer, answer === 'late' ? 'store_unavailable' : undefined);
        if (answer === 'stale') return await this.#superseded(call, exchange);
        return { kind: 'executed', exchange, decision, stored: answer === 'ok' };
      }
      stopRenewing();
      const step = call.spans?.begin(decision === 'release' ? 'release' : 'mark_in_doubt');
      if (decision === 'release') await this.#writer.release(call, execution);
      else await this.#leaveInDoubt(call, execution, exchange);
      step?.end('ended');
      if (exchange.kind === 'unknown')
        void exchange.late?.then((late) => this.#heal(call, execution, late, again));
      return { kind: 'executed', exchange, decision, stored: false };
    } finally {
      this.#running.end();
    }
  }

  /**
   * A lookup or a retry may have released or restarted the key while this machine was frozen with both its clocks, which the
   * fence cannot notice. So the record is read once more. From before that read, this execution may be sent for as long as the
   * record's age by the store's clock keeps others from taking it for dead, and never after the fence of its start.
   *
   * @returns undefined: this execution is not, or may not be, the owner any more, so nothing may be sent
   */
  async #askOwner(execution: Execution, maySend: () => boolean): Promise<(() => boolean) | undefined> {
    const askedMs = this.#clock.monotonicMs();
    const aliveForMs = await this.#store.aliveForMs(execution).catch(() => 0);
    const isAlive = () => this.#clock.monotonicMs() - askedMs < aliveForMs;
    return isAlive() ? () => isAlive() && maySend() : undefined;
  }

  /** Undoes a start or a restart under which nothing was sent. */
  takeBack({ execution, slot }: Started): void {
    slot.release();
    this.#writer.takeBack(execution);
  }

  async #leaveInDoubt(call: Call, execution: Execution, exchange: Exchange): Promise<void> {
    const cause = causeOf(exchange);
    if (exchange.kind === 'unknown')
      this.#observer.inDoubt(call, exchange.timedOut ? 'timeout' : 'connection', cause);
    else if (exchange.kind !== 'not_sent') this.#observer.inDoubt(call, 'status', cause);
    await this.#writer.markInDoubt(call, execution, cause.slice(0, MAX_CAUSE));
    if (call.inDoubt === 'lookup') this.#lookups?.lookUpLater(call, execution.token);
  }

  /** An execution in doubt has ended after all. Its result completes the key, unless somebody has resolved it. */
  async #heal(call: Call, execution: Execution, exchange: Exchange, again: boolean): Promise<void> {
    if (exchange.kind === 'oversize') exchange.body.destroy();
    if (decideFor(call, exchange, again) !== 'complete') return;
    const completion = completionOf(exchange);
    const write = () => this.#writer.complete(execution, completion, exchange);
    await this.#writer.repeatComplete(call, completion, write, () => {}, undefined);
  }

  /** Another execution or an operator has replaced the token: the merchant gets what is stored, or `outcome_unknown`. */
  async #superseded(call: Call, exchange: Exchange): Promise<Result> {
    if (exchange.kind === 'oversize') exchange.body.destroy();
    const found = await this.peek(call);
    if (found.kind === 'completed')
      return { kind: 'replayed', response: found.response, requestId: found.requestId };
    if (found.kind === 'tombstone') return found;
    const unknown: Exchange = {
      kind: 'unknown',
      reason: 'another execution owns the record',
      timedOut: false,
    };
    return { kind: 'executed', exchange: unknown, decision: 'in_doubt', stored: false };
  }

  /** Reads the record where no start is possible. An absent record becomes `store_unavailable`. */
  async readInstead(call: Call, cause: unknown): Promise<PeekAnswer | NotStarted> {
    const found = await this.peek(call);
    return found.kind === 'absent' ? { kind: 'store_unavailable', cause } : found;
  }

  /** @param options `isPoll`: one of many reads while the call waits, which is a step already */
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

  /**
   * Waits for pending writes, at most `ms`: responses that merchants already have, and starts to be taken back. Gives up
   * the writes that are pending then.
   */
  async close(ms: number): Promise<void> {
    await this.#writer.close(ms);
    this.#renewals.close();
  }
}

/** An attempt to execute the request, under a new token. */
export function executionOf(call: Omit<Execution, 'token'>): Execution {
  const { scope, fingerprint, merchant, operation, key, requestId } = call;
  const token = newToken();
  return { scope, token, memory: undefined, fingerprint, merchant, operation, key, requestId };
}

/** For traces: why the store did not answer. */
const errorOf = (cause: unknown): string => (cause instanceof Error ? cause.name : 'unknown');

const isMaybeWritten = (cause: unknown): boolean =>
  !(cause instanceof StoreUnavailable) || cause.maybeWritten;

const NOT_OWNER: Exchange = { kind: 'not_sent', reason: 'the key may have another owner' };

/** With these an idempotent backend says that the first request still runs. */
const STILL_RUNS = [409, 425];

/**
 * After a restart nothing is released, because the first request may have been executed even if the second was not. For the
 * same reason an answer that may be about the first request, which still runs, does not complete the key.
 */
function decideFor({ statuses }: Call, exchange: Exchange, again: boolean): Decision {
  const decision = decide(exchange, statuses);
  if (!again) return decision;
  return decision === 'release' || STILL_RUNS.includes(statusOf(exchange)) ? 'in_doubt' : decision;
}

/** Longest cause of a doubt that a record holds. */
const MAX_CAUSE = 255;

/** Why it is unknown whether the backend executed, for people. */
function causeOf(exchange: Exchange): string {
  if (exchange.kind === 'unknown' || exchange.kind === 'not_sent') return exchange.reason;
  return exchange.said === 'unknown' ? 'the handler said so' : `status ${statusOf(exchange)}`;
}

/** If `run` throws, it is unknown whether the request was sent. */
const brokenRun = (error: unknown): Exchange => ({
  kind: 'unknown',
  reason: error instanceof Error ? error.name : 'unknown error',
  timedOut: false,
});
