import { setTimeout as sleep } from 'node:timers/promises';
import type { Scope, Token } from '../kernel/brands.ts';
import type { Clock } from '../kernel/clock.ts';
import type { DoubtSolver } from './engine.ts';
import type { Lookup, LookupAnswer, LookupResult } from './lookup.ts';
import type { IdempotencyRecord, RecordHead } from './record.ts';
import { type AuditRecord, auditRecord, type Resolution } from './resolution.ts';
import type { Store } from './store.ts';

/** What the lookups tell those who watch. */
export interface DoubtObserver {
  lookedUp(operation: string, result: LookupResult): void;
  resolved(scope: Scope, resolution: AuditRecord): void;
  /** The key stays in doubt. `times`: how often it has been asked for in vain. */
  undecided(record: RecordHead & { scope: Scope }, said: string, times: number): void;
}

/** A key in doubt that this process looks up until it knows. */
interface Doubt {
  scope: Scope;
  operation: string;
  /** Whose execution is in doubt; unknown until the record has been read. */
  token: Token | undefined;
  /** Monotonic time at which this process met the doubt: the age that a release hangs on, whatever clocks do. */
  metMs: number;
  dueMs: number;
  pauseMs: number;
  times: number;
}

type Verdict = 'resolved' | 'changed' | 'open';

/** Questions of the background at once; those that a merchant waits for come on top, up to the second number. */
const AT_ONCE = 4;
const AT_ONCE_WITH_RETRIES = 32;
/** A key beyond them is looked up when its merchant asks again, or after the next start. */
const MOST_DOUBTS = 10_000;
const PAGE = 100;
const STORE_PAUSE_MS = { first: 1000, longest: 60_000 };

/**
 * Looks up what became of keys in doubt: of this process' own at once, of those that others left by one pass through
 * the store, of any when its merchant asks again.
 */
export class Doubts implements DoubtSolver {
  readonly #store: Store;
  readonly #lookups: ReadonlyMap<string, Lookup>;
  readonly #observer: DoubtObserver;
  readonly #clock: Clock;
  readonly #doubts = new Map<Scope, Doubt>();
  readonly #asking = new Map<Scope, Promise<Verdict>>();
  readonly #closing = new AbortController();
  #timer: NodeJS.Timeout | undefined;

  /** @param lookups by operation; of an operation that has none, nothing is looked up */
  constructor(store: Store, lookups: ReadonlyMap<string, Lookup>, observer: DoubtObserver, clock: Clock) {
    this.#store = store;
    this.#lookups = lookups;
    this.#observer = observer;
    this.#clock = clock;
  }

  met({ scope, operation }: { scope: Scope; operation: string }, token: Token): void {
    this.#keep(scope, operation, token);
    this.#arm();
  }

  async solve({ scope, operation }: { scope: Scope; operation: string }): Promise<boolean> {
    if (this.#closing.signal.aborted) return false;
    const doubt = this.#keep(scope, operation, undefined);
    if (!doubt) return false;
    const verdict = this.#asking.get(scope);
    if (!verdict && this.#asking.size >= AT_ONCE_WITH_RETRIES) return false;
    return (await (verdict ?? this.#ask(doubt))) !== 'open';
  }

  /**
   * One pass through the store, for what gateways that are gone have left.
   *
   * @param afterMs a lease: what had an owner when this process started has shown by then whether it still has one
   */
  async passThrough(afterMs: number): Promise<void> {
    if (this.#lookups.size === 0) return;
    const { signal } = this.#closing;
    const pause = (ms: number) => sleep(ms, undefined, { ref: false, signal }).catch(() => {});
    await pause(afterMs);
    let cursor: string | undefined;
    for (let pauseMs = STORE_PAUSE_MS.first; !signal.aborted; ) {
      try {
        const page = await this.#store.list({ inDoubt: true, limit: PAGE, cursor });
        for (const record of page.records) {
          if (record.unreadable === undefined) this.#keep(record.scope, record.operation, record.token);
        }
        this.#arm();
        if (page.cursor === undefined) return;
        cursor = page.cursor;
        while (this.#doubts.size > MOST_DOUBTS - PAGE && !signal.aborted) await pause(pauseMs);
      } catch {
        // The store is away, or the cursor's place is gone.
        cursor = undefined;
        await pause(pauseMs);
        pauseMs = Math.min(pauseMs * 2, STORE_PAUSE_MS.longest);
      }
    }
  }

  /** Asks nothing more, and ends when what was asked has been answered. */
  async close(): Promise<void> {
    this.#closing.abort();
    clearTimeout(this.#timer);
    await Promise.allSettled([...this.#asking.values()]);
  }

  #keep(scope: Scope, operation: string, token: Token | undefined): Doubt | undefined {
    const known = this.#doubts.get(scope);
    if (known && token) this.#renew(known, token);
    if (known) return known;
    const lookup = this.#lookups.get(operation);
    if (!lookup || this.#doubts.size >= MOST_DOUBTS) return undefined;
    const nowMs = this.#clock.monotonicMs();
    const { firstAfterMs } = lookup;
    const doubt = { scope, operation, token, metMs: nowMs, dueMs: nowMs + firstAfterMs, times: 0 };
    this.#doubts.set(scope, { ...doubt, pauseMs: firstAfterMs });
    return this.#doubts.get(scope);
  }

  /** Another execution under the same key is in doubt now: its age begins anew. */
  #renew(doubt: Doubt, token: Token): void {
    if (!doubt.token?.equals(token)) doubt.metMs = this.#clock.monotonicMs();
    doubt.token = token;
  }

  /** One timer, for whatever is due next. */
  #arm(): void {
    clearTimeout(this.#timer);
    if (this.#closing.signal.aborted || this.#asking.size >= AT_ONCE) return;
    let nextMs = Number.POSITIVE_INFINITY;
    for (const { scope, dueMs } of this.#doubts.values())
      if (!this.#asking.has(scope)) nextMs = Math.min(nextMs, dueMs);
    if (nextMs === Number.POSITIVE_INFINITY) return;
    const ms = Math.max(0, Math.ceil(nextMs - this.#clock.monotonicMs()));
    this.#timer = setTimeout(() => this.#askDue(), ms).unref();
  }

  #askDue(): void {
    const nowMs = this.#clock.monotonicMs();
    for (const doubt of this.#doubts.values()) {
      if (this.#asking.size >= AT_ONCE) return;
      if (doubt.dueMs <= nowMs && !this.#asking.has(doubt.scope)) void this.#ask(doubt);
    }
    this.#arm();
  }

  /** Once at a time for each scope. Never throws. */
  #ask(doubt: Doubt): Promise<Verdict> {
    const asked = this.#attempt(doubt)
      .catch((): Verdict => this.#later(doubt))
      .then((verdict) => {
        this.#asking.delete(doubt.scope);
        if (verdict !== 'open') this.#doubts.delete(doubt.scope);
        this.#arm();
        return verdict;
      });
    this.#asking.set(doubt.scope, asked);
    return asked;
  }

  async #attempt(doubt: Doubt): Promise<Verdict> {
    const lookup = this.#lookups.get(doubt.operation);
    const stands = await this.#store.get(doubt.scope);
    if (!lookup || !stands || !isDoubtful(stands, doubt)) return 'changed';
    this.#renew(doubt, stands.token);
    const inDoubtMs = this.#clock.monotonicMs() - doubt.metMs;
    const answer = await lookup.ask(stands);
    const resolution = resolutionBy(answer, inDoubtMs >= lookup.releaseAfterMs);
    if (!resolution) {
      this.#observer.lookedUp(doubt.operation, answer.kind === 'failed' ? 'failed' : 'unknown');
      this.#observer.undecided({ ...stands, scope: doubt.scope }, answer.said, ++doubt.times);
      const believedMs = doubt.metMs + lookup.releaseAfterMs;
      return this.#later(doubt, answer.kind === 'not_executed' ? believedMs : undefined);
    }
    const note = { by: 'lookup', reason: answer.said };
    const resolved = await this.#store.resolve(doubt.scope, stands.token, resolution, note);
    this.#observer.lookedUp(doubt.operation, resolved === 'ok' ? resolution.as : 'unknown');
    if (resolved === 'alive') return this.#later(doubt);
    if (resolved === 'changed') return 'changed';
    this.#observer.resolved(doubt.scope, auditRecord(stands, resolution, note, this.#clock.wallMs()));
    return 'resolved';
  }

  /** Asks again after a pause that doubles, or when the answer can be believed, if that is sooner. */
  #later(doubt: Doubt, believedMs = Number.POSITIVE_INFINITY): 'open' {
    const nowMs = this.#clock.monotonicMs();
    const { maxPauseMs = 0 } = this.#lookups.get(doubt.operation) ?? {};
    doubt.pauseMs = Math.min(doubt.pauseMs * 2, maxPauseMs);
    const jittered = doubt.pauseMs * (0.75 + Math.random() / 4);
    doubt.dueMs = Math.min(nowMs + jittered, Math.max(nowMs, believedMs));
    return 'open';
  }
}

/** Executing under this very token: its owner could not mark it, or is gone. */
function isDoubtful(stands: IdempotencyRecord, { token }: Doubt): boolean {
  if (stands.state === 'in_doubt') return true;
  return stands.state === 'executing' && token !== undefined && stands.token.equals(token);
}

function resolutionBy(answer: LookupAnswer, oldEnough: boolean): Resolution | undefined {
  if (answer.kind === 'executed') return { as: 'settled', settlement: answer.settlement };
  return answer.kind === 'not_executed' && oldEnough ? { as: 'released' } : undefined;
}
