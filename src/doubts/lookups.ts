import type { Store } from '../ledger/ledger.ts';
import { recordIdOf } from '../ledger/record-id.ts';
import type { RecordId, Token } from '../lib/brands.ts';
import { type Clock, pause } from '../lib/clock.ts';
import type { LookupAnswer } from '../lib/exchange.ts';
import { type Random, systemRandom } from '../lib/random.ts';
import type { Resolution } from '../store/doubts.ts';
import type { IdempotencyRecord, RecordHead } from '../store/types.ts';
import type { Emit } from '../telemetry/emit.ts';

/** Finds out what became of keys in doubt, for operations with `inDoubt: lookup`. */
export type DoubtLookups = Pick<Lookups, 'lookUpLater' | 'lookUpNow'>;

/** How the keys in doubt of one operation are looked up. Milliseconds. */
export interface Lookup {
  /** Asks the backend once. Never throws. */
  ask(transaction: Pick<RecordHead, 'merchant' | 'operation' | 'key'>): Promise<LookupAnswer>;
  /** How long a key must have been in doubt before "not executed" is believed. */
  releaseAfterMs: number;
  /** Pause between the doubt and the first lookup. */
  firstAfterMs: number;
  /** Longest pause between two lookups. */
  maxPauseMs: number;
}

/** A key in doubt that this process looks up until the backend's answer decides it. */
interface Doubt {
  recordId: RecordId;
  /** That of the record when it was last read. A key that was released may be used again for another operation. */
  operation: string;
  /** Names the execution in doubt; undefined until the record has been read. */
  token: Token | undefined;
  /**
   * Monotonic time at which this process found the key in doubt, without a living owner. A release depends on this age, never on a
   * wall clock.
   */
  metMs: number;
  dueMs: number;
  pauseMs: number;
  times: number;
}

type Verdict = 'resolved' | 'changed' | 'open';

/** Background lookups that may run at once. */
const MAX_IN_BACKGROUND = 4;
/** All lookups that may run at once, including those that a merchant waits for. */
export const LOOKUPS_AT_ONCE = 32;
/** The most keys that this process tracks. While it tracks so many, it does not look up other keys, not even on a retry. */
const MAX_DOUBTS = 10_000;
const PAGE = 100;
/** Factor for a time that is surely longer than a lease, although two clocks may differ. */
const PAST_LEASE = 1.1;
const STORE_PAUSE_MS = { first: 1000, longest: 60_000 };

/**
 * Asks the backend what became of keys in doubt. There are three ways to find such a key: this process puts it in doubt
 * (`lookUpLater`), its merchant retries (`lookUpNow`), or another gateway left it in the store (`lookUpAbandoned`).
 */
export class Lookups {
  readonly #store: Store;
  readonly #layer: string;
  #byOperation: ReadonlyMap<string, Lookup>;
  readonly #emit: Emit;
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #doubts = new Map<RecordId, Doubt>();
  readonly #running = new Map<RecordId, Promise<Verdict>>();
  readonly #closing = new AbortController();
  /** Ends the reading of the store that `lookUpAbandoned` has begun. */
  #reading = new AbortController();
  #cancel: (() => void) | undefined;

  /**
   * @param layer of the records that are looked up: the backend's answer says nothing about those of other layers
   * @param byOperation the lookup of each operation; keys of other operations are not looked up
   */
  constructor(
    store: Store,
    layer: string,
    byOperation: ReadonlyMap<string, Lookup>,
    emit: Emit,
    clock: Clock,
    random: Random = systemRandom,
  ) {
    this.#store = store;
    this.#layer = layer;
    this.#byOperation = byOperation;
    this.#emit = emit;
    this.#clock = clock;
    this.#random = random;
  }

  get byOperation(): ReadonlyMap<string, Lookup> {
    return this.#byOperation;
  }

  /**
   * Keys of an operation that has no lookup any more are forgotten, and stay in doubt. An answer to a lookup that was
   * replaced before it arrived is not used: the operator may have replaced it because its answers were wrong.
   */
  replace(byOperation: ReadonlyMap<string, Lookup>): void {
    this.#byOperation = byOperation;
  }

  /** Looks up, in the background, a key that this process has left in doubt. */
  lookUpLater({ recordId, operation }: { recordId: RecordId; operation: string }, token: Token): void {
    this.#track(recordId, operation, token);
    this.#setTimer();
  }

  /** Looks the key up at once. Resolves to true if the record has changed, so that it must be read again. Never throws. */
  async lookUpNow({ recordId, operation }: { recordId: RecordId; operation: string }): Promise<boolean> {
    if (this.#closing.signal.aborted) return false;
    const doubt = this.#track(recordId, operation, undefined);
    if (!doubt) return false;
    const verdict = this.#running.get(recordId);
    if (!verdict && this.#running.size >= LOOKUPS_AT_ONCE) return false;
    return (await (verdict ?? this.#lookUp(doubt))) !== 'open';
  }

  /**
   * Reads the whole store once, for keys that dead gateways have left in doubt. A further call replaces the reading that runs.
   *
   * @param leaseMs after this time, every living owner has renewed its lease
   */
  async lookUpAbandoned(leaseMs: number): Promise<void> {
    this.#reading.abort();
    if (this.#byOperation.size === 0) return;
    this.#reading = new AbortController();
    const signal = AbortSignal.any([this.#closing.signal, this.#reading.signal]);
    const rest = (ms: number) => pause(this.#clock, ms, signal, true);
    await rest(leaseMs * PAST_LEASE);
    let cursor: string | undefined;
    for (let pauseMs = STORE_PAUSE_MS.first; !signal.aborted; ) {
      try {
        const page = await this.#store.list({ inDoubt: true, limit: PAGE, cursor });
        for (const record of page.records) {
          if (record.unreadable !== undefined) continue;
          const { recordId, merchant, key, operation, token } = record;
          if (recordId === recordIdOf(this.#layer, merchant, key)) this.#track(recordId, operation, token);
        }
        this.#setTimer();
        if (page.cursor === undefined) return;
        cursor = page.cursor;
        while (this.#doubts.size > MAX_DOUBTS - PAGE && !signal.aborted) await rest(pauseMs);
      } catch {
        // The store does not answer, or the cursor has become invalid: start again from the beginning.
        cursor = undefined;
        await rest(pauseMs);
        pauseMs = Math.min(pauseMs * 2, STORE_PAUSE_MS.longest);
      }
    }
  }

  /** Starts no further lookups. Resolves when the running ones have ended. */
  async close(): Promise<void> {
    this.#closing.abort();
    this.#cancel?.();
    await Promise.allSettled([...this.#running.values()]);
  }

  #track(recordId: RecordId, operation: string, token: Token | undefined): Doubt | undefined {
    const known = this.#doubts.get(recordId);
    // The end of the lookup of an earlier execution must not forget the doubt of this one.
    const isLate = token && this.#running.has(recordId) && !known?.token?.equals(token);
    if (known && token && !isLate) this.#noteToken(known, token);
    if (known && !isLate) return known;
    const lookup = this.#byOperation.get(operation);
    const isFull = !known && this.#doubts.size >= MAX_DOUBTS;
    if (!lookup || isFull) return undefined;
    const nowMs = this.#clock.monotonicMs();
    const { firstAfterMs } = lookup;
    const due = { dueMs: nowMs + firstAfterMs, pauseMs: firstAfterMs };
    const doubt: Doubt = { recordId, operation, token, metMs: nowMs, ...due, times: 0 };
    this.#doubts.set(recordId, doubt);
    return doubt;
  }

  /** Notes which execution of the key is in doubt now. The age of another one starts at zero. */
  #noteToken(doubt: Doubt, token: Token): void {
    if (!doubt.token?.equals(token)) doubt.metMs = this.#clock.monotonicMs();
    doubt.token = token;
  }

  /** Sets the one timer to the lookup that is due next. */
  #setTimer(): void {
    this.#cancel?.();
    if (this.#closing.signal.aborted || this.#running.size >= MAX_IN_BACKGROUND) return;
    let nextMs = Number.POSITIVE_INFINITY;
    for (const { recordId, dueMs } of this.#doubts.values())
      if (!this.#running.has(recordId)) nextMs = Math.min(nextMs, dueMs);
    if (nextMs === Number.POSITIVE_INFINITY) return;
    const ms = Math.max(0, Math.ceil(nextMs - this.#clock.monotonicMs()));
    this.#cancel = this.#clock.after(ms, () => this.#lookUpDue(), true);
  }

  #lookUpDue(): void {
    const nowMs = this.#clock.monotonicMs();
    for (const doubt of this.#doubts.values()) {
      if (this.#running.size >= MAX_IN_BACKGROUND) return;
      if (doubt.dueMs <= nowMs && !this.#running.has(doubt.recordId)) void this.#lookUp(doubt);
    }
    this.#setTimer();
  }

  /** Starts a lookup of a key that has none running. Never throws. */
  #lookUp(doubt: Doubt): Promise<Verdict> {
    const asked = this.#attempt(doubt)
      .catch((): Verdict => this.#postpone(doubt))
      .then((verdict) => {
        this.#running.delete(doubt.recordId);
        const isKnown = this.#doubts.get(doubt.recordId) === doubt;
        if (verdict !== 'open' && isKnown) this.#doubts.delete(doubt.recordId);
        this.#setTimer();
        return verdict;
      });
    this.#running.set(doubt.recordId, asked);
    return asked;
  }

  async #attempt(doubt: Doubt): Promise<Verdict> {
    const { recordId } = doubt;
    const record = await this.#store.get(recordId);
    if (!record || !mayBeInDoubt(record, doubt)) return 'changed';
    // The lookup of another operation does not know this transaction, and could release a key that was paid.
    const { operation } = record;
    const lookup = this.#byOperation.get(operation);
    if (!lookup) return 'changed';
    doubt.operation = operation;
    if (await this.#store.hasLivingOwner(recordId)) return this.#postponeLiving(doubt);
    this.#noteToken(doubt, record.token);
    const inDoubtMs = this.#clock.monotonicMs() - doubt.metMs;
    const answer = await lookup.ask(record);
    if (this.#byOperation.get(operation) !== lookup) return this.#postpone(doubt);
    // After a restart, a request that was not executed says nothing about the other one.
    const mayRelease = inDoubtMs >= lookup.releaseAfterMs && !record.restarted;
    const resolution = resolutionBy(answer, mayRelease);
    if (!resolution) {
      this.#emit('lookups', { operation, result: answer.kind === 'failed' ? 'failed' : 'unknown' });
      this.#emit('undecided', { ...record, recordId, said: answer.said, times: ++doubt.times });
      const believedMs = doubt.metMs + lookup.releaseAfterMs;
      return this.#postpone(doubt, answer.kind === 'not_executed' ? believedMs : undefined);
    }
    const note = { by: 'lookup', reason: answer.said, source: 'lookup' as const };
    const resolved = await this.#store.resolve(recordId, record.token, resolution, note);
    this.#emit('lookups', { operation, result: resolved === 'ok' ? resolution.as : 'unknown' });
    if (resolved === 'alive') return this.#postponeLiving(doubt);
    if (resolved === 'changed') return 'changed';
    const { merchant, state: from } = record;
    const what = { recordId, merchant, operation };
    this.#emit('resolved', { ...what, ...note, from, to: resolution.as });
    return 'resolved';
  }

  /** The age starts at zero once the owner is dead: a handler may pay as long as it runs, although it was taken for dead before. */
  #postponeLiving(doubt: Doubt): 'open' {
    doubt.token = undefined;
    return this.#postpone(doubt);
  }

  /** Schedules the next lookup: after a pause that doubles, or when "not executed" can be believed, if that is sooner. */
  #postpone(doubt: Doubt, believedMs = Number.POSITIVE_INFINITY): 'open' {
    const nowMs = this.#clock.monotonicMs();
    const { maxPauseMs = 0 } = this.#byOperation.get(doubt.operation) ?? {};
    doubt.pauseMs = Math.min(doubt.pauseMs * 2, maxPauseMs);
    const jittered = doubt.pauseMs * (0.75 + this.#random.fraction() / 4);
    doubt.dueMs = Math.min(nowMs + jittered, Math.max(nowMs, believedMs));
    return 'open';
  }
}

/**
 * May a lookup resolve the record? Also an executing one: nobody has asked for it since its owner died, so nothing has marked it in
 * doubt. If a token is known, an executing record must still have it. The store's `resolve` refuses if the owner is alive after all.
 */
function mayBeInDoubt(
  record: IdempotencyRecord,
  { token }: Doubt,
): record is IdempotencyRecord & { state: 'executing' | 'in_doubt' } {
  if (record.state === 'in_doubt') return true;
  return record.state === 'executing' && (token === undefined || record.token.equals(token));
}

function resolutionBy(answer: LookupAnswer, mayRelease: boolean): Resolution | undefined {
  if (answer.kind === 'executed') return { as: 'completed', completion: answer.completion };
  return answer.kind === 'not_executed' && mayRelease ? { as: 'released' } : undefined;
}
