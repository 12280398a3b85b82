import type { Token } from '../kernel/brands.ts';
import type { Clock } from '../kernel/clock.ts';
import { Tally } from '../kernel/tally.ts';
import type { Call, EngineObserver, Result } from './call.ts';
import { Conclusion } from './conclusion.ts';
import { newToken } from './fingerprint.ts';
import { type Decision, decide, type Exchange } from './outcome.ts';
import { type Moment, momentOf, OwnLease } from './own-lease.ts';
import { Persistence } from './persistence.ts';
import { type Claim, type Owner, type Store, StoreUnavailable } from './store.ts';
import { WaitingRoom } from './waiting.ts';
import { within } from './within.ts';

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

/** Finds out what became of keys in doubt, for operations under `inDoubt: lookup`. */
export interface DoubtSolver {
  /** A key has come to be in doubt: to be looked up in the background. */
  met(doubt: Pick<Call, 'scope' | 'operation'>, token: Token): void;
  /** Asks at once. True: something else stands there by now. Never throws. */
  solve(doubt: Pick<Call, 'scope' | 'operation'>): Promise<boolean>;
}

/** The owner may send: `confirmed` is from before the command that made it so. `again`: not for the first time. */
interface Begun {
  kind: 'begun';
  confirmed: Moment;
  again: boolean;
}

/** Something else stands there by now. */
const LOOK_AGAIN = { kind: 'look_again' } as const;

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
  readonly #solver: DoubtSolver | undefined;
  readonly #waiting: WaitingRoom;
  readonly #persistence = new Persistence();
  readonly #conclusion: Conclusion;
  readonly #handling = new Tally();
  readonly #running = new Tally();
  #closing = false;

  constructor(
    store: Store,
    options: EngineOptions,
    observer: EngineObserver,
    clock: Clock,
    solver?: DoubtSolver,
  ) {
    this.#store = store;
    this.#options = options;
    this.#observer = observer;
    this.#clock = clock;
    this.#solver = solver;
    this.#waiting = new WaitingRoom(options.maxWaiters);
    this.#conclusion = new Conclusion(store, this.#persistence, options, observer);
  }

  get waiting(): number {
    return this.#waiting.count;
  }

  get executing(): number {
    return this.#running.count;
  }

  /** Writes that are repeated because the store has not answered. */
  get pendingWrites(): number {
    return this.#persistence.count;
  }

  /** Never throws: whatever breaks becomes a result. */
  async handle(call: Call): Promise<Result> {
    const waitUntilMs = this.#clock.monotonicMs() + call.waitMs;
    this.#handling.begin();
    try {
      for (;;) {
        const owner: Owner = { scope: call.scope, token: newToken() };
        const claim = await this.#claim(call, owner, waitUntilMs);
        const next =
          claim.kind === 'claimed'
            ? await this.#begin(call, owner, claim.tookOver)
            : claim.kind === 'in_doubt'
              ? await this.#inDoubt(call, owner, claim, waitUntilMs)
              : answerOf(claim);
        if (next.kind === 'begun') return await this.#run(call, owner, next);
        if (next.kind !== 'look_again') return next;
      }
    } finally {
      this.#handling.end();
    }
  }

  /** Begins nothing new, and ends when all calls have their results, at most after `ms`. */
  async drain(ms: number): Promise<void> {
    this.#closing = true;
    this.#waiting.wakeEverybody();
    await within(this.#handling.idle(), ms);
  }

  /**
   * Drains, and ends when the store has taken what only this process knows: results that merchants were told, and that
   * nothing was sent for a key. After `ms` what is left of it is given up.
   */
  async close(ms: number): Promise<void> {
    const startedMs = this.#clock.monotonicMs();
    await this.drain(ms);
    await this.#persistence.close(Math.max(0, ms - (this.#clock.monotonicMs() - startedMs)));
  }

  /** Claims, and waits while somebody else holds the scope. */
  async #claim(call: Call, owner: Owner, waitUntilMs: number): Promise<Claim | Result> {
    const { fingerprint, merchant, operation, key } = call;
    for (let waited = false; ; waited = true) {
      if (this.#closing) return { kind: 'closing' };
      let claim: Claim;
      try {
        claim = await this.#store.claim({ ...owner, fingerprint, merchant, operation, key });
      } catch (cause) {
        // It may have been made, or may still be. Past the lease an ownerless claim is taken over anyway.
        const maybeWritten = !(cause instanceof StoreUnavailable) || cause.maybeWritten;
        if (maybeWritten) this.#conclusion.takeBack(owner, this.#options.leaseMs);
        return { kind: 'store_unavailable', cause };
      }
      if (claim.kind !== 'in_flight') {
        if (waited) this.#waiting.wakeAll(call.scope);
        return claim;
      }
      if (this.#closing) continue;
      const leftMs = waitUntilMs - this.#clock.monotonicMs();
      if (leftMs <= 0 || call.gone?.aborted) return claim;
      const startedMs = this.#clock.monotonicMs();
      if (!(await this.#waiting.wait(call.scope, leftMs, call.gone))) return claim;
      call.waited?.(this.#clock.monotonicMs() - startedMs);
      // Nobody is there any more to be answered: no execution shall begin for them.
      if (call.gone?.aborted) return claim;
    }
  }

  /** The last write before the first byte goes upstream. Anything but `begun` means: do not send. */
  async #begin(call: Call, owner: Owner, tookOver: boolean): Promise<Begun | typeof LOOK_AGAIN | Result> {
    if (tookOver) this.#observer.tookOver(call);
    const confirmed = momentOf(this.#clock);
    try {
      if ((await this.#store.begin(owner)) === 'ok') return { kind: 'begun', confirmed, again: false };
      this.#observer.stale('begin', call);
      return LOOK_AGAIN;
    } catch (cause) {
      // The claim stands, whatever became of the begin.
      this.#conclusion.takeBack(owner);
      return { kind: 'store_unavailable', cause };
    }
  }

  /** What a retry does about a key in doubt: by its operation's policy. */
  async #inDoubt(
    call: Call,
    owner: Owner,
    claim: Extract<Claim, { kind: 'in_doubt' }>,
    waitUntilMs: number,
  ): Promise<Begun | typeof LOOK_AGAIN | Result> {
    if (call.inDoubt === 'retry') return await this.#takeOver(call, owner);
    if (call.inDoubt !== 'lookup' || !this.#solver) return claim;
    const startedMs = this.#clock.monotonicMs();
    const solved = await within(this.#solver.solve(call), waitUntilMs - startedMs, call.gone);
    call.waited?.(this.#clock.monotonicMs() - startedMs);
    return solved && !call.gone?.aborted ? LOOK_AGAIN : claim;
  }

  /** Takes a key in doubt for a second execution. */
  async #takeOver(call: Call, owner: Owner): Promise<Begun | typeof LOOK_AGAIN | Result> {
    const confirmed = momentOf(this.#clock);
    try {
      if ((await this.#store.takeOver(owner, call.fingerprint)) === 'changed') return LOOK_AGAIN;
    } catch (cause) {
      this.#conclusion.backInDoubt(owner);
      return { kind: 'store_unavailable', cause };
    }
    this.#observer.sendsAgain(call);
    return { kind: 'begun', confirmed, again: true };
  }

  /** After a durable begin. */
  async #run(call: Call, owner: Owner, begun: Begun): Promise<Result> {
    if (this.#closing) {
      if (begun.again) this.#conclusion.backInDoubt(owner);
      else this.#conclusion.takeBack(owner);
      return { kind: 'closing' };
    }
    this.#running.begin();
    try {
      return await this.#execute(call, owner, begun);
    } finally {
      this.#running.end();
    }
  }

  async #execute(call: Call, owner: Owner, { confirmed, again }: Begun): Promise<Result> {
    const lease = this.#keepLease(call, owner, confirmed);
    try {
      const exchange = await runOnce(call, () => lease.mayStart());
      const decision = decideUnder(call, exchange, again);
      await this.#conclusion.write(call, owner, exchange, decision);
      if (decision === 'in_doubt' && call.inDoubt === 'lookup') this.#solver?.met(call, owner.token);
      return { kind: 'executed', exchange, decision };
    } finally {
      lease.stop();
      this.#waiting.wakeAll(call.scope);
    }
  }

  #keepLease(call: Call, owner: Owner, confirmed: Moment): OwnLease {
    const onStale = () => this.#observer.stale('renew', call);
    const onLost = () => this.#observer.leaseLost(call);
    const [store, clock, { leaseMs }] = [this.#store, this.#clock, this.#options];
    return new OwnLease({ store, owner, leaseMs, clock, onStale, onLost }, confirmed);
  }
}

function answerOf(claim: Exclude<Claim, { kind: 'claimed' }> | Result): Result {
  if (claim.kind !== 'settled') return claim;
  if (claim.settlement.kind === 'tombstone') return { kind: 'tombstone' };
  return { kind: 'replayed', response: claim.settlement.response };
}

/** That the second request surely was not executed says nothing of the first. */
function decideUnder(call: Call, exchange: Exchange, again: boolean): Decision {
  const decision = decide(exchange, call.releaseStatuses);
  return again && decision === 'release' ? 'in_doubt' : decision;
}

/** A run that throws is broken machinery; nobody knows what it had sent. */
async function runOnce(call: Call, mayStart: () => boolean): Promise<Exchange> {
  try {
    return await call.run(mayStart);
  } catch (error) {
    return {
      kind: 'unknown',
      reason: error instanceof Error ? error.name : 'unknown error',
      timedOut: false,
    };
  }
}
