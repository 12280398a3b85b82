import { setTimeout as sleep } from 'node:timers/promises';
import type { Scope, Token } from '../../kernel/brands.ts';
import type { Clock } from '../../kernel/clock.ts';
import type { LookupAnswer } from '../../kernel/exchange.ts';
import type { DoubtSolver } from '../execution.ts';
import {
  type AuditRecord,
  auditRecord,
  type IdempotencyRecord,
  type RecordHead,
  type Resolution,
  type Store,
} from '../store.ts';

/** Events of the lookups, for metrics and the log. */
export interface DoubtObserver {
  lookedUp(operation: string, result: LookupResult): void;
  resolved(scope: Scope, resolution: AuditRecord): void;
  /** The key stays in doubt. `times`: how many lookups have not decided it. */
  undecided(record: RecordHead & { scope: Scope }, said: string, times: number): void;
}

/** A key in doubt that this process looks up until it is decided. */
interface Doubt {
  scope: Scope;
  operation: string;
  /** Names the execution in doubt; undefined until the record has been read. */
  token: Token | undefined;
  /** Monotonic time at which this process learned of the doubt. A release depends on this age, never on a wall clock. */
  metMs: number;
  dueMs: number;
  pauseMs: number;
  times: number;
}

type Verdict = 'resolved' | 'changed' | 'open';

/** Lookups in the background at once. */
const AT_ONCE = 4;
/** All lookups at once, with those that a merchant waits for. */
export const LOOKUPS_AT_ONCE = 32;
/** Beyond this many, a key is looked up when its merchant retries, or after the next start of a gateway. */
const MOST_DOUBTS = 10_000;
const PAGE = 100;
const STORE_PAUSE_MS = { first: 1000, longest: 60_000 };

/**
 * Looks up what became of keys in doubt: keys of this process at once, keys that other gateways left in one pass through the
 * store, and any key when its merchant retries.
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

  /** @param lookups by operation; keys of an operation without one are not looked up */
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
    if (!verdict && this.#asking.size >= LOOKUPS_AT_ONCE) return false;
    return (await (verdict ?? this.#ask(doubt))) !== 'open';
  }

  /**
   * One pass through the store, for keys that dead gateways have left.
   *
   * @param afterMs a lease: by then the owner of every record has shown whether it is alive
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
        // The store is away, or the cursor has become invalid.
        cursor = undefined;
        await pause(pauseMs);
        pauseMs = Math.min(pauseMs * 2, STORE_PAUSE_MS.longest);
      }
    }
  }

  /** Starts no lookup any more, and resolves when those under way have ended. */
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

  /** Another execution of the same key is in doubt now, so its age starts at zero. */
  #renew(doubt: Doubt, token: Token): void {
    if (!doubt.token?.equals(token)) doubt.metMs = this.#clock.monotonicMs();
    doubt.token = token;
  }

  /** One timer, for the lookup that is due next. */
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

  /** One lookup at a time for each scope. Never throws. */
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
    const record = await this.#store.get(doubt.scope);
    if (!lookup || !record || !isDoubtful(record, doubt)) return 'changed';
    this.#renew(doubt, record.token);
    const inDoubtMs = this.#clock.monotonicMs() - doubt.metMs;
    const answer = await lookup.ask(record);
    const resolution = resolutionBy(answer, inDoubtMs >= lookup.releaseAfterMs);
    if (!resolution) {
      this.#observer.lookedUp(doubt.operation, answer.kind === 'failed' ? 'failed' : 'unknown');
      this.#observer.undecided({ ...record, scope: doubt.scope }, answer.said, ++doubt.times);
      const believedMs = doubt.metMs + lookup.releaseAfterMs;
      return this.#later(doubt, answer.kind === 'not_executed' ? believedMs : undefined);
    }
    const note = { by: 'lookup', reason: answer.said };
    const resolved = await this.#store.resolve(doubt.scope, record.token, resolution, note);
    this.#observer.lookedUp(doubt.operation, resolved === 'ok' ? resolution.as : 'unknown');
    if (resolved === 'alive') return this.#later(doubt);
    if (resolved === 'changed') return 'changed';
    this.#observer.resolved(doubt.scope, auditRecord(record, resolution, note, this.#clock.wallMs()));
    return 'resolved';
  }

  /** Looks up again after a pause that doubles, or when the answer can be believed, if that is sooner. */
  #later(doubt: Doubt, believedMs = Number.POSITIVE_INFINITY): 'open' {
    const nowMs = this.#clock.monotonicMs();
    const { maxPauseMs = 0 } = this.#lookups.get(doubt.operation) ?? {};
    doubt.pauseMs = Math.min(doubt.pauseMs * 2, maxPauseMs);
    const jittered = doubt.pauseMs * (0.75 + Math.random() / 4);
    doubt.dueMs = Math.min(nowMs + jittered, Math.max(nowMs, believedMs));
    return 'open';
  }
}

/**
 * Also if it is executing: under the token that is known to be in doubt, or under any if none is known, because a retry has
 * read it as in doubt, and a read does not mark it. `resolve` refuses if the owner is alive after all.
 */
function isDoubtful(record: IdempotencyRecord, { token }: Doubt): boolean {
  if (record.state === 'in_doubt') return true;
  return record.state === 'executing' && (token === undefined || record.token.equals(token));
}

function resolutionBy(answer: LookupAnswer, oldEnough: boolean): Resolution | undefined {
  if (answer.kind === 'executed') return { as: 'completed', completion: answer.completion };
  return answer.kind === 'not_executed' && oldEnough ? { as: 'released' } : undefined;
}

/** How an operation's keys in doubt are looked up. */
export interface Lookup {
  /** Asks the backend once. Never throws. */
  ask(transaction: Pick<RecordHead, 'merchant' | 'operation' | 'key'>): Promise<LookupAnswer>;
  /** How long a key must have been in doubt before "not executed" is believed. */
  releaseAfterMs: number;
  /** From when the key is in doubt to the first question. */
  firstAfterMs: number;
  /** Between two questions, at most. */
  maxPauseMs: number;
}

/** The result of a lookup. `unknown`: the answer does not decide it, or not yet. */
export type LookupResult = 'completed' | 'released' | 'unknown' | 'failed';
