import { RECORD_ID_DIGITS, type RecordId } from '../lib/brands.ts';
import type { Clock } from '../lib/clock.ts';
import type { Emit } from '../telemetry/emit.ts';
import type { Store } from './ledger.ts';

/** How often a store that has failed is asked again. */
const LOOK_EVERY_MS = 250;
/** An outage is over when nothing has failed for so long: a disk that is almost full takes some writes and refuses others. */
const QUIET_MS = 1000;
/** A store that was lost takes no writes yet while its replicas catch up. That is part of its return, unless it lasts longer. */
const RETURN_MS = 10_000;
/** No record has this id. */
const NO_RECORD = '0'.repeat(RECORD_ID_DIGITS) as RecordId;

/**
 * Tells when the store stops to answer, when it refuses writes only, and when it works again: once for each outage, however many
 * commands fail. A command that fails says little: it may have been slow. So the store is asked then, and not again before it has answered.
 */
export class Outages {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #emit: Emit;
  // All times are on the monotonic clock.
  #outage: { isLost: boolean; lostAtMs: number; sinceMs: number } | undefined;
  /** When the first command began that failed and that the store was not asked about yet. */
  #suspectAtMs: number | undefined;
  #failedAtMs = 0;
  #askedAtMs = Number.NEGATIVE_INFINITY;
  #isAsking = false;
  #cancel: (() => void) | undefined;

  /** @param store not the measured one, because these questions are no work of the gateway */
  constructor(store: Store, clock: Clock, emit: Emit) {
    this.#store = store;
    this.#clock = clock;
    this.#emit = emit;
    const look = () => {
      this.#cancel = clock.after(LOOK_EVERY_MS, look, true);
      if (this.#outage || this.#suspectAtMs !== undefined || store.refusing !== undefined) void this.#look();
    };
    look();
  }

  /** A command has failed. `startedMs`: when it was sent, because it may have waited for its time limit. */
  failed(startedMs: number): void {
    this.#failedAtMs = this.#clock.monotonicMs();
    this.#suspectAtMs ??= startedMs;
    if (this.#failedAtMs - this.#askedAtMs >= LOOK_EVERY_MS) void this.#look();
  }

  close(): void {
    this.#cancel?.();
    this.#cancel = undefined;
  }

  async #look(): Promise<void> {
    if (this.#isAsking || !this.#cancel) return;
    this.#isAsking = true;
    this.#askedAtMs = this.#clock.monotonicMs();
    const sinceMs = this.#suspectAtMs ?? this.#askedAtMs;
    this.#suspectAtMs = undefined;
    const found = await this.#ask();
    this.#isAsking = false;
    if (!this.#cancel) return;
    const nowMs = this.#clock.monotonicMs();
    if (found) {
      const { reason } = found;
      this.#failedAtMs = nowMs;
      const last = this.#outage ?? { isLost: undefined, lostAtMs: Number.NEGATIVE_INFINITY, sinceMs };
      const lostAtMs = found.isLost ? nowMs : last.lostAtMs;
      const isLost = nowMs - lostAtMs < RETURN_MS;
      if (isLost && !last.isLost) this.#emit('store_lost', { reason });
      if (!isLost && last.isLost !== false) this.#emit('store_refuses', { reason });
      this.#outage = { ...last, isLost, lostAtMs };
    } else if (this.#outage && nowMs - this.#failedAtMs >= QUIET_MS) {
      this.#emit('store_works', { lastedMs: Math.round(this.#failedAtMs - this.#outage.sinceMs) });
      this.#outage = undefined;
    }
  }

  /** What is wrong with the store now. `isLost`: it does not answer reads either. */
  async #ask(): Promise<{ isLost: boolean; reason: string } | undefined> {
    const read = this.#store.get(NO_RECORD).catch(() => 'lost');
    const { ok, detail } = await this.#store.health();
    const isLost = (await read) === 'lost';
    return ok ? undefined : { isLost, reason: detail };
  }
}
