import type { RecordId } from '../lib/brands.ts';
import type { Clock } from '../lib/clock.ts';
import type { Emit } from '../telemetry/emit.ts';
import type { Store } from './ledger.ts';

/** How often a store that has failed is asked again. */
const LOOK_EVERY_MS = 250;
/** An outage is over when nothing has failed for so long: a disk that is almost full takes some writes and refuses others. */
const QUIET_MS = 1000;
/** No record has this id. */
const NO_RECORD = '0'.repeat(64) as RecordId;

/**
 * Tells when the store stops to answer, when it refuses writes only, and when that has ended: once for each outage, however many
 * commands fail. A command that fails says little: it may have been slow. So the store is asked then, one question at a time.
 */
export class Outages {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #emit: Emit;
  // On the monotonic clock.
  #lostAtMs: number | undefined;
  #refusesAtMs: number | undefined;
  /** The first failure that the store was not asked about yet, and the last one. */
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
      if (this.#isSuspect) void this.#look();
    };
    look();
  }

  /** A command has failed. */
  failed(): void {
    this.#failedAtMs = this.#clock.monotonicMs();
    this.#suspectAtMs ??= this.#failedAtMs;
    if (this.#failedAtMs - this.#askedAtMs >= LOOK_EVERY_MS) void this.#look();
  }

  close(): void {
    this.#cancel?.();
    this.#cancel = undefined;
  }

  get #isSuspect(): boolean {
    return (this.#lostAtMs ?? this.#refusesAtMs ?? this.#suspectAtMs ?? this.#store.refusing) !== undefined;
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
    if (found) this.#failedAtMs = nowMs;
    else if (nowMs - this.#failedAtMs < QUIET_MS) return;
    if (found?.answers === false) {
      if (this.#lostAtMs === undefined) this.#emit('store_lost', { reason: found.reason });
      this.#lostAtMs ??= sinceMs;
    } else if (this.#lostAtMs !== undefined) {
      this.#emit('store_back', { awayMs: Math.round(this.#failedAtMs - this.#lostAtMs) });
      this.#lostAtMs = undefined;
    }
    if (found?.answers) {
      if (this.#refusesAtMs === undefined) this.#emit('store_refuses', { reason: found.reason });
      this.#refusesAtMs ??= sinceMs;
    } else if (!found && this.#refusesAtMs !== undefined) {
      this.#emit('store_writes', { refusedMs: Math.round(this.#failedAtMs - this.#refusesAtMs) });
      this.#refusesAtMs = undefined;
    }
  }

  /** What is wrong with the store now, and whether it answers reads. */
  async #ask(): Promise<{ answers: boolean; reason: string } | undefined> {
    const health = await this.#store.health();
    if (health.ok) return undefined;
    const answers = await this.#store.get(NO_RECORD).then(
      () => true,
      () => false,
    );
    // It may have come back between the two questions.
    const again = answers ? await this.#store.health() : health;
    return again.ok ? undefined : { answers, reason: again.detail };
  }
}
