import type { Store } from '../ledger/ledger.ts';
import type { Clock } from '../lib/clock.ts';
import { type DoubtCount, RESOLUTION_SOURCES, RESOLVED_AS } from '../store/doubts.ts';
import type { Emit } from '../telemetry/emit.ts';
import type { AllMetrics } from '../telemetry/metrics.ts';

export interface DoubtGaugesOptions {
  store: Pick<Store, 'countDoubts'>;
  metrics: AllMetrics;
  clock: Clock;
  emit: Emit;
  /** `idempotency.countDoubtsEveryMs`. */
  everyMs: number;
}

/** Several resolutions of one moment lead to one count. */
const SOON_MS = 50;
/**
 * After resolutions the keys are counted again, but not before a third of the usual time has passed since the last count: a lookup may
 * resolve thousands, one after the other.
 */
const SOONER = 3;

const RESOLUTION_KINDS = RESOLVED_AS.flatMap((as) => RESOLUTION_SOURCES.map((by) => ({ as, by })));

/**
 * Shows what the store knows of the keys in doubt, whichever gateway has left them. The gauges keep their values while the store
 * does not answer; `oncegate_doubts_counted_timestamp_seconds` says how old they are.
 */
export class DoubtGauges {
  readonly #options: DoubtGaugesOptions;
  #closing = new AbortController();
  readonly #shown = new Map<string, number>();
  #last: DoubtCount | undefined;
  #cancelNext: () => void = () => {};
  /** When it counts next, on the monotonic clock. Infinity: that is not known yet. */
  #dueMs = Number.POSITIVE_INFINITY;
  #hasBegun = false;
  #isCounting = false;
  /** When it last counted because keys were resolved. */
  #countedMs = Number.NEGATIVE_INFINITY;
  #hasFailed = false;

  constructor(options: DoubtGaugesOptions) {
    this.#options = options;
    const { metrics, clock } = options;
    // The age grows between two counts.
    metrics.beforeReading(() => {
      const { countedAtMs = 0, oldestSinceMs } = this.#last ?? {};
      metrics.doubtsCounted.set(countedAtMs / 1000);
      metrics.oldestInDoubt.set(
        oldestSinceMs === undefined ? 0 : Math.max(0, clock.wallMs() - oldestSinceMs) / 1000,
      );
    });
  }

  /** Counts now, and from now on every `everyMs`. May be called again after `close`. */
  begin(): void {
    if (this.#closing.signal.aborted) this.#closing = new AbortController();
    this.#hasBegun = true;
    void this.#count();
  }

  /** Counts soon, because this process has resolved a key. */
  resolved(): void {
    if (!this.#hasBegun) return;
    const nowMs = this.#options.clock.monotonicMs();
    const inMs = Math.max(SOON_MS, this.#countedMs + this.#options.everyMs / SOONER - nowMs);
    if (nowMs + inMs < this.#dueMs) this.#schedule(inMs, true);
  }

  close(): void {
    this.#closing.abort();
    this.#cancelNext();
  }

  #schedule(inMs: number, isEarly = false): void {
    if (this.#closing.signal.aborted) return;
    this.#cancelNext();
    const { clock } = this.#options;
    this.#dueMs = clock.monotonicMs() + inMs;
    this.#cancelNext = clock.after(inMs, () => void this.#count(isEarly), true);
  }

  async #count(isEarly = false): Promise<void> {
    const { store, clock, emit } = this.#options;
    const { signal } = this.#closing;
    this.#dueMs = Number.POSITIVE_INFINITY;
    if (this.#isCounting) return this.#schedule(SOON_MS, isEarly);
    this.#isCounting = true;
    if (isEarly) this.#countedMs = clock.monotonicMs();
    try {
      this.#show(await store.countDoubts({ signal }));
      this.#hasFailed = false;
    } catch (error) {
      const { message: reason } = error as Error;
      if (!this.#hasFailed && !signal.aborted) emit('doubts_uncounted', { reason });
      this.#hasFailed = true;
    } finally {
      this.#isCounting = false;
    }
    // Unless a key was resolved meanwhile.
    if (this.#dueMs === Number.POSITIVE_INFINITY) this.#schedule(this.#options.everyMs);
  }

  #show(count: DoubtCount): void {
    this.#last = count;
    this.#showKeys(count);
    this.#showResolutions(count);
  }

  #showKeys({ operations }: DoubtCount): void {
    const { metrics } = this.#options;
    const shown = new Map([...metrics.operations].map((name) => [name, { inDoubt: 0, ownerGone: 0 }]));
    for (const [operation, { inDoubt, ownerGone }] of operations) {
      // The store may have keys of operations that no configuration names any more. Labels stay bounded.
      const name = shown.has(operation) ? operation : 'other';
      const sum = shown.get(name) ?? { inDoubt: 0, ownerGone: 0 };
      shown.set(name, { inDoubt: sum.inDoubt + inDoubt, ownerGone: sum.ownerGone + ownerGone });
    }
    for (const [operation, { inDoubt, ownerGone }] of shown) {
      metrics.keysInDoubt.set({ operation }, inDoubt);
      metrics.keysOwnerGone.set({ operation }, ownerGone);
    }
  }

  #showResolutions({ resolutions }: DoubtCount): void {
    const { metrics } = this.#options;
    for (const { as, by } of RESOLUTION_KINDS) {
      const number = resolutions.find((one) => one.as === as && one.by === by)?.number ?? 0;
      const before = this.#shown.get(`${as} ${by}`) ?? 0;
      this.#shown.set(`${as} ${by}`, number);
      // The store was emptied, or is another one. Prometheus takes a counter that falls for one that began again.
      const hasFallen = number < before;
      if (hasFallen) metrics.resolutions.remove({ as, by });
      metrics.resolutions.inc({ as, by }, hasFallen ? number : number - before);
    }
  }
}
