import type { Token } from '../kernel/brands.ts';
import { type Clock, within } from '../kernel/clock.ts';
import { type Exchange, releaseAfter, type Slot, type SlotSource } from '../kernel/exchange.ts';
import { Roster, Tally } from '../kernel/roster.ts';
import type { Call, EngineObserver, Result } from './call.ts';
import { Duplicates, type Lead } from './duplicates.ts';
import { newToken } from './fingerprint.ts';
import { fenceFrom, Renewals } from './lease.ts';
import { completionOf, type Decision, decide } from './outcome.ts';
import { RecordWriter } from './record-writer.ts';
import { type Execution, type PeekAnswer, type Store, StoreUnavailable, UnreadableRecord } from './store.ts';
import { WriteGate } from './write-gate.ts';

export interface EngineOptions {
  /** How long the lease lives without being renewed. */
  leaseMs: number;
  inDoubtRetentionMs: number;
  /** How long a merchant's answer is held back while the store does not take the response. */
  completeRetryMs: number;
  /** Duplicates that may wait at once; one more is answered `in_flight`. */
  maxWaiters: number;
}

/** Finds out what became of keys in doubt, for operations with `inDoubt: lookup`. */
export interface DoubtSolver {
  /** A key is in doubt from now on: look it up in the background. */
  met(doubt: Pick<Call, 'scope' | 'operation'>, token: Token): void;
  /** Looks the key up at once. True: the record has changed. Never throws. */
  solve(doubt: Pick<Call, 'scope' | 'operation'>): Promise<boolean>;
}

/** This request owns the scope and has a slot: it may send, as long as `maySend` says so. */
interface Started {
  kind: 'started';
  execution: Execution;
  slot: Slot;
  maySend: () => boolean;
  /** An earlier request with this key may have been executed (`inDoubt: retry`). */
  again: boolean;
}

type NotStarted = Extract<Result, { kind: 'store_unavailable' | 'overloaded' | 'closing' }>;
type Found = Started | PeekAnswer | NotStarted;

const REFUSES = 'the store refuses writes';
const FIRST_LOOK_MS = 25;
const LONGEST_LOOK_MS = 250;

/**
 * start → run → complete. Knows neither an HTTP server nor a database.
 *
 * A failure before a durable start means that nothing is sent. A failure after it means that the key is in doubt.
 */
export class Engine {
  readonly #store: Store;
  readonly #slots: SlotSource;
  readonly #options: EngineOptions;
  readonly #observer: EngineObserver;
  readonly #clock: Clock;
  readonly #doubts: DoubtSolver | undefined;
  readonly #writer: RecordWriter;
  readonly #renewals: Renewals;
  readonly #gate: WriteGate;
  readonly #duplicates = new Duplicates();
  readonly #handling = new Tally();
  readonly #running = new Tally();
  /** Each ends a wait of a leader. */
  readonly #waits = new Roster<() => void>();
  #looking = 0;
  #closing = false;

  constructor(
    store: Store,
    slots: SlotSource,
    options: EngineOptions,
    observer: EngineObserver,
    clock: Clock,
    doubts?: DoubtSolver,
  ) {
    this.#store = store;
    this.#slots = slots;
    this.#options = options;
    this.#observer = observer;
    this.#clock = clock;
    this.#doubts = doubts;
    this.#writer = new RecordWriter(store, options, observer, clock);
    this.#renewals = new Renewals(store, options.leaseMs, observer, clock);
    this.#gate = new WriteGate(clock);
  }

  /** Duplicates that wait for another request's result. */
  get waiting(): number {
    return this.#duplicates.following + this.#looking;
  }

  get executing(): number {
    return this.#running.count;
  }

  /** Writes that are repeated because the store has not answered. */
  get pendingWrites(): number {
    return this.#writer.pendingWrites;
  }

  /** The store refuses writes; keyed requests are answered from reads where that is possible. */
  get storeRefuses(): boolean {
    return this.#store.refusing !== undefined || this.#gate.isShut;
  }

  /** Never throws for what a store or a backend may do: every failure is a result. */
  async handle(call: Call): Promise<Result> {
    const waitUntilMs = this.#clock.monotonicMs() + call.waitMs;
    this.#handling.begin();
    try {
      let lead = this.#duplicates.tryLead(call);
      if (!lead) {
        const followed = await this.#follow(call);
        if ('kind' in followed) return followed;
        lead = followed;
      }
      let result: Result | undefined;
      try {
        result = await this.#lead(call, lead, waitUntilMs);
        return result;
      } finally {
        this.#duplicates.handOver(call, lead, result);
      }
    } finally {
      this.#handling.end();
    }
  }

  /** Starts nothing new, and resolves when all calls have their results, at most after `ms`. */
  async drain(ms: number): Promise<void> {
    this.#closing = true;
    this.#duplicates.endAll({ kind: 'closing' });
    for (const end of this.#waits.values()) end();
    await within(this.#handling.idle(), ms);
  }

  /**
   * Drains, and waits for writes that only this process can make: responses that merchants have got, and starts to be
   * taken back. After `ms` what is left is given up.
   */
  async close(ms: number): Promise<void> {
    const startedMs = this.#clock.monotonicMs();
    await this.drain(ms);
    await this.#writer.close(Math.max(0, ms - (this.#clock.monotonicMs() - startedMs)));
    this.#renewals.close();
  }

  async #follow(call: Call): Promise<Result | Lead> {
    if (this.#closing) return { kind: 'closing' };
    const startedMs = this.#clock.monotonicMs();
    const followed = await this.#duplicates.follow(call, this.#mayWait() ? call.waitMs : 0);
    call.waited?.(this.#clock.monotonicMs() - startedMs);
    return followed;
  }

  /** From the store's first answer to the merchant's result. */
  async #lead(call: Call, lead: Lead, waitUntilMs: number): Promise<Result> {
    let found: Found = await this.#start(call, lead);
    for (let lookMs = FIRST_LOOK_MS; ; lookMs = Math.min(lookMs * 1.5, LONGEST_LOOK_MS)) {
      switch (found.kind) {
        case 'started':
          lead.markInFlight();
          return await this.#execute(call, found);
        case 'absent':
          // The owner in another process has released the key.
          found = call.gone?.aborted ? { kind: 'in_flight' } : await this.#start(call, lead);
          break;
        case 'in_flight':
          lead.markInFlight();
          if (this.#closing) return { kind: 'closing' };
          if (!(await this.#waitToLook(call, lookMs, waitUntilMs))) return found;
          found = await this.#peek(call);
          break;
        case 'in_doubt': {
          // Under another operation's policy nothing may be sent again.
          const policy = found.operation === call.operation ? call.inDoubt : 'hold';
          const next = await this.#inDoubt(call, lead, policy, waitUntilMs);
          if (!next) return { kind: 'in_doubt', sinceMs: found.sinceMs, requestId: found.requestId };
          found = next;
          break;
        }
        case 'completed':
          return { kind: 'replayed', response: found.response, requestId: found.requestId };
        default:
          return found;
      }
    }
  }

  /** Takes a slot, then starts: the request goes out right after its record is durable. */
  #start(call: Call, lead: Lead): Promise<Found> {
    if (this.#closing) return Promise.resolve<Found>({ kind: 'closing' });
    const { refusing } = this.#store;
    const isTrial = this.#gate.isShut;
    if (refusing !== undefined || !this.#gate.admits()) return this.#readInstead(call, refusing ?? REFUSES);
    const free = lead.place ? undefined : this.#slots.tryTake();
    return free ? this.#startWith(call, free) : this.#startLater(call, lead, isTrial);
  }

  /** No slot is free. */
  async #startLater(call: Call, lead: Lead, isTrial: boolean): Promise<Found> {
    const slot = await this.#slotFor(call, lead, true);
    if ('kind' in slot) {
      this.#gate.notTried();
      return slot;
    }
    if (isTrial || !this.#gate.isShut) return await this.#startWith(call, slot);
    // The gate was shut while this request was queued.
    slot.release();
    return await this.#readInstead(call, REFUSES);
  }

  /** The fence counts from before the store's command. */
  async #startWith(call: Call, slot: Slot): Promise<Found> {
    const execution = executionOf(call);
    const maySend = fenceFrom(this.#clock, this.#options.leaseMs);
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
      if (!isMaybeWritten(cause)) return await this.#readInstead(call, cause);
      this.#writer.takeBack(execution);
      return { kind: 'store_unavailable', cause };
    }
  }

  /** A record in doubt becomes this request's, which is then sent a second time. */
  async #restart(call: Call, lead: Lead): Promise<Found> {
    if (this.#closing) return { kind: 'closing' };
    const { refusing } = this.#store;
    if (refusing !== undefined) return { kind: 'store_unavailable', cause: refusing };
    const slot = await this.#slotFor(call, lead, false);
    if ('kind' in slot) return slot;
    const execution = executionOf(call);
    const maySend = fenceFrom(this.#clock, this.#options.leaseMs);
    try {
      if ((await this.#store.restart(execution)) === 'ok') {
        this.#observer.sendsAgain(call);
        return { kind: 'started', execution, slot, maySend, again: true };
      }
      // Executing without a living owner, which start marks; or changed, which start reports.
      return await this.#startWith(call, slot);
    } catch (cause) {
      slot.release();
      if (isMaybeWritten(cause)) this.#writer.takeBackRestart(execution);
      return { kind: 'store_unavailable', cause };
    }
  }

  /** From a durable start to a durable result. */
  async #execute(call: Call, { execution, slot, maySend, again }: Started): Promise<Result> {
    if (this.#closing) {
      slot.release();
      if (again) this.#writer.takeBackRestart(execution);
      else this.#writer.takeBack(execution);
      return { kind: 'closing' };
    }
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
    const found = await this.#peek(call);
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

  /** What a retry does about a key in doubt. Undefined: nothing, it stays in doubt. */
  async #inDoubt(
    call: Call,
    lead: Lead,
    policy: Call['inDoubt'],
    waitUntilMs: number,
  ): Promise<Found | undefined> {
    if (policy === 'retry') return await this.#restart(call, lead);
    if (policy === 'hold' || !this.#doubts) return undefined;
    lead.markInFlight();
    const startedMs = this.#clock.monotonicMs();
    const solved = await this.#wait(this.#doubts.solve(call), waitUntilMs - startedMs, call.gone);
    call.waited?.(this.#clock.monotonicMs() - startedMs);
    return solved ? await this.#peek(call) : undefined;
  }

  /**
   * A slot; or, if none is free, what the record says, so that replays and duplicates need no slot.
   *
   * @param peek false if the record is known already
   */
  async #slotFor(call: Call, lead: Lead, peek: boolean): Promise<Slot | Exclude<Found, Started>> {
    if (!lead.place) {
      const free = this.#slots.tryTake();
      if (free) return free;
      const found = peek ? await this.#peek(call) : undefined;
      if (found && found.kind !== 'absent') return found;
      lead.place = this.#slots.queue();
      if (!lead.place) return { kind: 'overloaded' };
    }
    lead.markInFlight();
    const slot = await this.#wait(lead.place.slot, this.#slots.queueTimeoutMs, call.gone);
    if (this.#closing) return { kind: 'closing' };
    // The place stays with the lead: the next duplicate takes it over.
    if (!slot || call.gone?.aborted) return { kind: 'overloaded' };
    lead.place = undefined;
    return slot;
  }

  async #readInstead(call: Call, cause: unknown): Promise<PeekAnswer | NotStarted> {
    const found = await this.#peek(call);
    return found.kind === 'absent' ? { kind: 'store_unavailable', cause } : found;
  }

  async #peek(call: Call): Promise<PeekAnswer | NotStarted> {
    try {
      return await this.#store.peek(call);
    } catch (cause) {
      return { kind: 'store_unavailable', cause };
    }
  }

  /** Waits for an execution in another process. False: the time is over, and the key is still in flight. */
  async #waitToLook(call: Call, lookMs: number, waitUntilMs: number): Promise<boolean> {
    const startedMs = this.#clock.monotonicMs();
    const leftMs = waitUntilMs - startedMs;
    if (leftMs <= 0 || call.gone?.aborted || !this.#mayWait()) return false;
    this.#looking++;
    await this.#wait(undefined, Math.min(lookMs, leftMs), call.gone);
    this.#looking--;
    call.waited?.(this.#clock.monotonicMs() - startedMs);
    return !call.gone?.aborted;
  }

  #mayWait(): boolean {
    return this.waiting < this.#options.maxWaiters;
  }

  /** The result of `work`; undefined after `ms`, when the merchant leaves, or when the engine closes. */
  #wait<T>(work: Promise<T> | undefined, ms: number, gone: AbortSignal | undefined): Promise<T | undefined> {
    if (ms <= 0 || gone?.aborted || this.#closing) return Promise.resolve(undefined);
    return new Promise((resolve) => {
      const end = (result?: T) => {
        clearTimeout(timer);
        gone?.removeEventListener('abort', interrupt);
        remove();
        resolve(result);
      };
      const interrupt = () => end();
      const timer = setTimeout(interrupt, ms);
      const remove = this.#waits.add(interrupt);
      gone?.addEventListener('abort', interrupt);
      void work?.then(end);
    });
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
