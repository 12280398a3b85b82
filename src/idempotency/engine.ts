import type { Fingerprint, Scope } from '../kernel/brands.ts';
import type { Clock } from '../kernel/clock.ts';
import { newToken } from './fingerprint.ts';
import { type Decision, decide, type Exchange } from './outcome.ts';
import { Persistence } from './persistence.ts';
import type { Settlement, StoredResponse } from './record.ts';
import { type Claim, type Fenced, type Owner, type Store, StoreUnavailable } from './store.ts';
import { WaitingRoom } from './waiting.ts';

export interface EngineOptions {
  /** How long the lease lives without being renewed. */
  leaseMs: number;
  /** How long a record is kept: past it, no write for it is worth repeating. */
  retentionMs: number;
  /** How long a merchant's answer is held back while the store does not take the settlement. */
  settleRetryMs: number;
  /** Duplicates that may wait at once; one more is answered `in_flight`. */
  maxWaiters: number;
}

/** One request with an idempotency key. */
export interface Call {
  scope: Scope;
  fingerprint: Fingerprint;
  merchant: string;
  operation: string;
  key: string;
  /** How long to wait for another request with this key. 0: not at all. */
  waitMs: number;
  /** Statuses by which the backend says that it did not execute. */
  releaseStatuses: readonly number[];
  /** Aborted when the merchant leaves. Ends waiting; never an execution. */
  gone?: AbortSignal;
  /** Told after each wait for another request with this key. */
  waited?(ms: number): void;
  /** Sends the request to the backend, once. Called at most once, and only after a durable begin. */
  run(): Promise<Exchange>;
}

/** What the merchant is to be told. */
export type Result =
  /** This request was executed: `decision` says what became of the key. */
  | { kind: 'executed'; exchange: Exchange; decision: Decision }
  | { kind: 'replayed'; response: StoredResponse }
  | { kind: 'tombstone' }
  | { kind: 'in_flight' }
  | { kind: 'mismatch' }
  | { kind: 'in_doubt'; sinceMs: number }
  /** Nothing was sent. */
  | { kind: 'store_unavailable'; cause: unknown }
  /** The engine is closing, or closed; nothing was sent. */
  | { kind: 'closing' };

/** What the engine tells those who watch. Labels are operation names and the words below, nothing else. */
export interface EngineObserver {
  inDoubt(call: Call, exchange: Extract<Exchange, { kind: 'unknown' }>): void;
  stale(write: 'begin' | 'renew' | 'settle' | 'release' | 'in_doubt', call: Call): void;
  tookOver(call: Call): void;
  leaseLost(call: Call): void;
  /** The store did not take a settlement in time; the merchant got the answer, and settling goes on. */
  settleLate(call: Call, cause: unknown): void;
}

/**
 * claim → begin → run → settle. Knows neither HTTP server nor database.
 *
 * Whatever fails here fails towards "not executed" before a durable begin, and towards "in doubt" after it.
 */
export class Engine {
  readonly #store: Store;
  readonly #options: EngineOptions;
  readonly #observer: EngineObserver;
  readonly #clock: Clock;
  readonly #waiting: WaitingRoom;
  readonly #persistence = new Persistence();
  readonly #running = new Set<Promise<Result>>();
  #closing = false;

  constructor(store: Store, options: EngineOptions, observer: EngineObserver, clock: Clock) {
    this.#store = store;
    this.#options = options;
    this.#observer = observer;
    this.#clock = clock;
    this.#waiting = new WaitingRoom(options.maxWaiters);
  }

  get waiting(): number {
    return this.#waiting.count;
  }

  get executing(): number {
    return this.#running.size;
  }

  /** Writes that are repeated because the store has not answered. */
  get pendingWrites(): number {
    return this.#persistence.count;
  }

  /** Never throws: whatever breaks becomes a result. */
  async handle(call: Call): Promise<Result> {
    const waitUntilMs = this.#clock.monotonicMs() + call.waitMs;
    for (;;) {
      const owner: Owner = { scope: call.scope, token: newToken() };
      const claim = await this.#claim(call, owner, waitUntilMs);
      if (claim.kind !== 'claimed') return answerOf(claim);
      if (claim.tookOver) this.#observer.tookOver(call);
      const begun = await this.#begin(call, owner);
      if (begun === 'ok') return await this.#run(call, owner);
      if (begun !== 'stale') return begun;
    }
  }

  /** Begins nothing new, and ends when nothing runs any more, at most after `ms`. */
  async close(ms: number): Promise<void> {
    this.#closing = true;
    const startedMs = this.#clock.monotonicMs();
    const timeout = new Promise<void>((resolve) => setTimeout(resolve, ms).unref());
    while (this.#running.size > 0 && this.#clock.monotonicMs() - startedMs < ms) {
      await Promise.race([Promise.allSettled([...this.#running]), timeout]);
    }
    await this.#persistence.close(Math.max(0, ms - (this.#clock.monotonicMs() - startedMs)));
  }

  /** Claims, and waits while somebody else holds the scope. */
  async #claim(call: Call, owner: Owner, waitUntilMs: number): Promise<Claim | Result> {
    for (let waited = false; ; waited = true) {
      if (this.#closing) return { kind: 'closing' };
      let claim: Claim;
      try {
        claim = await this.#store.claim({ ...call, ...owner });
      } catch (cause) {
        // It may have been made, or may still be. Past the lease an ownerless claim is taken over anyway.
        const maybeWritten = !(cause instanceof StoreUnavailable) || cause.maybeWritten;
        if (maybeWritten) this.#takeBack(owner, this.#options.leaseMs);
        return { kind: 'store_unavailable', cause };
      }
      if (claim.kind !== 'in_flight') {
        if (waited) this.#waiting.wakeAll(call.scope);
        return claim;
      }
      const leftMs = waitUntilMs - this.#clock.monotonicMs();
      if (leftMs <= 0 || call.gone?.aborted) return claim;
      const startedMs = this.#clock.monotonicMs();
      if (!(await this.#waiting.wait(call.scope, leftMs, call.gone))) return claim;
      call.waited?.(this.#clock.monotonicMs() - startedMs);
      // Nobody is there any more to be answered: no execution shall begin for them.
      if (call.gone?.aborted) return claim;
    }
  }

  /** The last thing before the first byte goes upstream. Anything but `ok` means: do not send. */
  async #begin(call: Call, owner: Owner): Promise<Fenced | Result> {
    try {
      const begun = await this.#store.begin(owner);
      if (begun === 'stale') this.#observer.stale('begin', call);
      return begun;
    } catch (cause) {
      // The claim stands, whatever became of the begin.
      this.#takeBack(owner);
      return { kind: 'store_unavailable', cause };
    }
  }

  /** After a durable begin. */
  async #run(call: Call, owner: Owner): Promise<Result> {
    if (this.#closing) {
      this.#takeBack(owner);
      return { kind: 'closing' };
    }
    const run = this.#execute(call, owner);
    this.#running.add(run);
    try {
      return await run;
    } finally {
      this.#running.delete(run);
    }
  }

  async #execute(call: Call, owner: Owner): Promise<Result> {
    const renewal = this.#keepLease(call, owner);
    try {
      const exchange = await runOnce(call);
      const decision = decide(exchange, call.releaseStatuses);
      await this.#conclude(call, owner, exchange, decision);
      return { kind: 'executed', exchange, decision };
    } finally {
      clearInterval(renewal);
      this.#waiting.wakeAll(call.scope);
    }
  }

  async #conclude(call: Call, owner: Owner, exchange: Exchange, decision: Decision): Promise<void> {
    if (decision === 'settle') return await this.#settle(call, owner, settlementOf(exchange));
    if (exchange.kind === 'unknown') {
      this.#observer.inDoubt(call, exchange);
      // Left executing if this fails: once its lease has lapsed, that reads as in doubt as well.
      return await this.#fenced(
        'in_doubt',
        call,
        this.#store.markInDoubt(owner).catch(() => 'ok' as const),
      );
    }
    const released = this.#store.release(owner).catch(() => {
      this.#takeBack(owner);
      return 'ok' as const;
    });
    await this.#fenced('release', call, released);
  }

  /** Stores the result before one byte of it goes to the merchant; past `settleRetryMs` the merchant goes first. */
  async #settle(call: Call, owner: Owner, settlement: Settlement): Promise<void> {
    let cause: unknown;
    const write = () =>
      this.#store.settle(owner, settlement).catch((error: unknown) => {
        cause = error;
        throw error;
      });
    const settled = this.#persistence.untilAnswered(write, this.#options.retentionMs);
    const fenced = settled.then((answer) => this.#fenced('settle', call, Promise.resolve(answer ?? 'ok')));
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<'late'>((resolve) => {
      timer = setTimeout(resolve, this.#options.settleRetryMs, 'late');
    });
    if ((await Promise.race([fenced, late])) === 'late') this.#observer.settleLate(call, cause);
    clearTimeout(timer);
  }

  async #fenced(
    write: 'settle' | 'release' | 'in_doubt',
    call: Call,
    answer: Promise<Fenced>,
  ): Promise<void> {
    if ((await answer) === 'stale') this.#observer.stale(write, call);
  }

  /** Renews at a third of the lease, so that two renewals may fail before it lapses. */
  #keepLease(call: Call, owner: Owner): NodeJS.Timeout {
    let busy = false;
    const renew = async () => {
      if (busy) return;
      busy = true;
      try {
        const renewed = await this.#store.renew(owner);
        if (renewed === 'stale') this.#observer.stale('renew', call);
        if (renewed === 'lost') this.#observer.leaseLost(call);
      } catch {
        // Liveness only: an unanswered renewal is tried again by the next tick.
      } finally {
        busy = false;
      }
    };
    return setInterval(() => void renew(), Math.max(1, Math.floor(this.#options.leaseMs / 3)));
  }

  /** Nothing was sent under this claim: it is released, again and again until the store answers. */
  #takeBack(owner: Owner, forMs = this.#options.retentionMs): void {
    void this.#persistence.untilAnswered(() => this.#store.release(owner), forMs);
  }
}

function answerOf(claim: Exclude<Claim, { kind: 'claimed' }> | Result): Result {
  if (claim.kind !== 'settled') return claim;
  if (claim.settlement.kind === 'tombstone') return { kind: 'tombstone' };
  return { kind: 'replayed', response: claim.settlement.response };
}

/** A run that throws is broken machinery; nobody knows what it had sent. */
async function runOnce(call: Call): Promise<Exchange> {
  try {
    return await call.run();
  } catch (error) {
    return {
      kind: 'unknown',
      reason: error instanceof Error ? error.name : 'unknown error',
      timedOut: false,
    };
  }
}

function settlementOf(exchange: Exchange): Settlement {
  if (exchange.kind === 'complete') return { kind: 'response', response: exchange.response };
  if (exchange.kind === 'oversize') return { kind: 'tombstone', status: exchange.status };
  throw new TypeError(`an exchange that ended ${exchange.kind} has no result`);
}
