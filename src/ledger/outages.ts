import type { RecordId, Token } from '../lib/brands.ts';
import type { Clock } from '../lib/clock.ts';
import { messageOf } from '../lib/files.ts';
import type { Owner } from '../store/types.ts';
import type { Emit } from '../telemetry/emit.ts';
import type { Store } from './ledger.ts';

/** How often a store that has failed is asked again. */
const LOOK_EVERY_MS = 250;
/** An outage is over when nothing has failed for so long: a disk that is almost full takes some writes and refuses others. */
const QUIET_MS = 1000;
/** What is told when an outage begins, and when it has ended. */
const LINES = {
  lost: {
    begins: (emit: Emit, reason: string) => emit('store_lost', { reason }),
    ends: (emit: Emit, lastedMs: number) => emit('store_back', { lastedMs }),
  },
  refuses: {
    begins: (emit: Emit, reason: string) => emit('store_refuses', { reason }),
    ends: (emit: Emit, lastedMs: number) => emit('store_writes', { lastedMs }),
  },
};
type Outage = keyof typeof LINES;
/** No record has this id, and no execution this token. */
const NOBODY: Owner = { recordId: '0'.repeat(64) as RecordId, token: Buffer.alloc(16) as Token };

/**
 * Tells when the store stops to answer, when it refuses writes only, and when that has ended: once for each outage, however many
 * commands fail. A command that fails says little: it may have been slow. So the store is asked then, one question at a time.
 */
export class Outages {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #emit: Emit;
  /** When each outage began that has not ended. All times are on the monotonic clock. */
  readonly #since = new Map<Outage, number>();
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
    return this.#since.size > 0 || (this.#suspectAtMs ?? this.#store.refusing) !== undefined;
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
    this.#tell('lost', found?.answers === false, sinceMs, found?.reason);
    // Of a store that does not answer, nobody knows whether it takes writes.
    if (found?.answers !== false) this.#tell('refuses', found !== undefined, sinceMs, found?.reason);
  }

  #tell(outage: Outage, isOn: boolean, sinceMs: number, reason = ''): void {
    const beganMs = this.#since.get(outage);
    if (isOn && beganMs === undefined) {
      this.#since.set(outage, sinceMs);
      LINES[outage].begins(this.#emit, reason);
    }
    if (isOn || beganMs === undefined) return;
    this.#since.delete(outage);
    LINES[outage].ends(this.#emit, Math.round(this.#failedAtMs - beganMs));
  }

  /** What is wrong with the store now, and whether it answers reads. */
  async #ask(): Promise<{ answers: boolean; reason: string } | undefined> {
    const answers = (await this.#store.get(NOBODY.recordId).catch(() => 'none')) !== 'none';
    const { ok, detail } = await this.#store.health();
    // Its own probe waits for no replica. A write that does follows, which changes nothing.
    const reason = ok ? await this.#store.takeBack(NOBODY).then(() => undefined, messageOf) : detail;
    return reason === undefined ? undefined : { answers, reason };
  }
}
