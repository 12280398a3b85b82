import type { Token } from '../kernel/brands.ts';
import type { Clock } from '../kernel/clock.ts';
import { type Exchange, releaseAfter, type Slot } from '../kernel/exchange.ts';
import { Tally } from '../kernel/roster.ts';
import type { Call, EngineObserver, Result } from './call.ts';
import { newToken } from './fingerprint.ts';
import { fenceFrom, Renewals } from './lease.ts';
import { completionOf, type Decision, decide } from './outcome.ts';
import { RecordWriter } from './record-writer.ts';
import { type Execution, type PeekAnswer, type Store, StoreUnavailable, UnreadableRecord } from './store.ts';
import type { WriteGate } from './write-gate.ts';

export interface ExecutionOptions {
  /** How long the lease lives without being renewed. */
  leaseMs: number;
  inDoubtRetentionMs: number;
  /** How long a merchant's answer is held back while the store does not take the response. */
  completeRetryMs: number;
}

/** Finds out what became of keys in doubt, for operations with `inDoubt: lookup`. */
export interface DoubtSolver {
  /** A key is in doubt from now on: look it up in the background. */
  met(doubt: Pick<Call, 'scope' | 'operation'>, token: Token): void;
  /** Looks the key up at once. True: the record has changed. Never throws. */
  solve(doubt: Pick<Call, 'scope' | 'operation'>): Promise<boolean>;
}

/** This request owns the scope and has a slot: it may send, as long as `maySend` says so. */
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

/** What the executions of an engine work with. */
export interface ExecutionParts {
  store: Store;
  observer: EngineObserver;
  clock: Clock;
  gate: WriteGate;
  doubts: DoubtSolver | undefined;
}

/**
 * start → run → complete, for one request that leads its scope and has a slot.
 *
 * A failure before a durable start means that nothing is sent. A failure after it means that the key is in doubt.
 */
export class Executions {
  readonly #store: Store;
  readonly #leaseMs: number;
  readonly #observer: EngineObserver;
  readonly #clock: Clock;
  readonly #gate: WriteGate;
  readonly #doubts: DoubtSolver | undefined;
  readonly #writer: RecordWriter;
  readonly #renewals: Renewals;
  readonly #running = new Tally();

  constructor(options: ExecutionOptions, { store, observer, clock, gate, doubts }: ExecutionParts) {
    this.#store = store;
    this.#leaseMs = options.leaseMs;
    this.#observer = observer;
    this.#clock = clock;
    this.#gate = gate;
    this.#doubts = doubts;
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

  /** The fence counts from before the store's command. Gives the slot back unless the answer is `started`. */
  async start(call: Call, slot: Slot): Promise<Found> {
    const execution = executionOf(call);
    const maySend = fenceFrom(this.#clock, this.#leaseMs);
    try {
      const answer = await this.#store.start(execution);
      if (answer.kind === 'started') {
        this.#gate.succeeded();
        return { kind: 'started', execution, slot, maySend, again: false };
      }
      slot.release();
      this.#gate.notTried();
      return answer;
    } catch (cause) {
      slot.release();
      if (cause instanceof UnreadableRecord) this.#gate.notTried();
      else this.#gate.failed();
      if (!isMaybeWritten(cause)) return await this.readInstead(call, cause);
      this.#writer.takeBack(execution);
      return { kind: 'store_unavailable', cause };
    }
  }

  /** A record in doubt becomes this request's, which is then sent a second time. */
  async restart(call: Call, slot: Slot): Promise<Found> {
    const execution = executionOf(call);
    const maySend = fenceFrom(this.#clock, this.#leaseMs);
    try {
      if ((await this.#store.restart(execution)) === 'ok') {
        this.#observer.sendsAgain(call);
        return { kind: 'started', execution, slot, maySend, again: true };
      }
      // Executing without a living owner, which start marks; or changed, which start reports.
      return await this.start(call, slot);
    } catch (cause) {
      slot.release();
      if (isMaybeWritten(cause)) this.#writer.takeBackRestart(execution);
      return { kind: 'store_unavailable', cause };
    }
  }

  /** From a durable start to a durable result. */
  async run(call: Call, { execution, slot, maySend, again }: Started): Promise<Result> {
    this.#running.begin();
    const stopRenewing = this.#renewals.keep(call, execution);
    try {
      let exchange: Exchange;
      try {
        exchange = await call.run(maySend);
      } catch (error) {
        exchange = brokenRun(error);
      }
      releaseAfter(slot, exchange);
      const decision = decideFor(call, exchange, again);
      if (decision === 'complete') {
        const answer = await this.#writer.complete(call, execution, completionOf(exchange), stopRenewing);
        if (answer === 'stale') return await this.#superseded(call, exchange);
        return { kind: 'executed', exchange, decision, stored: answer === 'ok' };
      }
      stopRenewing();
      if (decision === 'release') await this.#writer.release(call, execution);
      else await this.#leaveInDoubt(call, execution, exchange);
      return { kind: 'executed', exchange, decision, stored: false };
    } finally {
      this.#running.end();
    }
  }

  /** Undoes a start or a restart under which nothing was sent. */
  takeBack({ execution, slot, again }: Started): void {
    slot.release();
    if (again) this.#writer.takeBackRestart(execution);
    else this.#writer.takeBack(execution);
  }

  async #leaveInDoubt(call: Call, execution: Execution, exchange: Exchange): Promise<void> {
    if (exchange.kind === 'unknown')
      this.#observer.inDoubt(call, exchange.timedOut ? 'timeout' : 'connection', exchange.reason);
    else if (exchange.kind !== 'not_sent')
      this.#observer.inDoubt(call, 'status', `status ${statusOf(exchange)}`);
    await this.#writer.markInDoubt(call, execution);
    if (call.inDoubt === 'lookup') this.#doubts?.met(call, execution.token);
  }

  /** Another execution or an operator has the record by now: the merchant gets what every retry gets. */
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

  /** Answers from a read where no start is possible. */
  async readInstead(call: Call, cause: unknown): Promise<PeekAnswer | NotStarted> {
    const found = await this.peek(call);
    return found.kind === 'absent' ? { kind: 'store_unavailable', cause } : found;
  }

  async peek(call: Call): Promise<PeekAnswer | NotStarted> {
    try {
      return await this.#store.peek(call);
    } catch (cause) {
      return { kind: 'store_unavailable', cause };
    }
  }

  /**
   * Waits for writes that only this process can make: responses that merchants have got, and starts to be taken back. After
   * `ms` the rest is given up.
   */
  async close(ms: number): Promise<void> {
    await this.#writer.close(ms);
    this.#renewals.close();
  }
}

function executionOf({ scope, fingerprint, merchant, operation, key, requestId }: Call): Execution {
  return { scope, token: newToken(), fingerprint, merchant, operation, key, requestId };
}

const isMaybeWritten = (cause: unknown): boolean =>
  !(cause instanceof StoreUnavailable) || cause.maybeWritten;

/** After a restart nothing is released: that the second request was not executed says nothing about the first. */
function decideFor({ statuses }: Call, exchange: Exchange, again: boolean): Decision {
  const decision = decide(exchange, statuses);
  return again && decision === 'release' ? 'in_doubt' : decision;
}

const statusOf = (exchange: Extract<Exchange, { kind: 'complete' | 'oversize' }>): number =>
  exchange.kind === 'complete' ? exchange.response.status : exchange.status;

/** A `run` that throws is broken machinery: what it had sent is unknown. */
const brokenRun = (error: unknown): Exchange => ({
  kind: 'unknown',
  reason: error instanceof Error ? error.name : 'unknown error',
  timedOut: false,
});
