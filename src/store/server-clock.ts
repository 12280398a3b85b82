import type { Clock } from '../lib/clock.ts';
import type { Emit } from '../telemetry/emit.ts';

/** A server's wall clock minus our monotonic clock, exact to `errorMs`, at `atMs` on the monotonic clock. */
interface Offset {
  offsetMs: number;
  errorMs: number;
  atMs: number;
}

/** A smaller change of the offset does not count as a step. */
const STEP_MS = 1000;
/** A reading of the clock that is less exact could hide a step, so it is not compared with. */
const MOST_ERROR_MS = 500;
/** A clock may be slewed by this share of the time that has passed. Linux slews by at most half as much. */
const SLEW = 0.001;
const STEP_IS_REPORTED_FOR_MS = 3_600_000;

/** Watches the wall clocks of a store's servers. The store expires records by them, so their hosts may slew them, but must not step them. */
export class ServerClocks {
  /** By the name of a server. Servers that take over from each other have one name, so that their clocks are compared. */
  readonly #offsets = new Map<string, Offset>();
  readonly #clock: Clock;
  readonly #emit: Emit | undefined;
  #step: { stepMs: number; atMs: number } | undefined;

  constructor(clock: Clock, emit: Emit | undefined) {
    this.#clock = clock;
    this.#emit = emit;
  }

  /** @param read the server's wall clock in Unix milliseconds, or undefined if it does not tell */
  async compare(server: string, read: () => Promise<number | undefined>): Promise<void> {
    const beforeMs = this.#clock.monotonicMs();
    const wallMs = await read();
    if (wallMs === undefined) return;
    const atMs = this.#clock.monotonicMs();
    const errorMs = atMs - beforeMs;
    const offsetMs = wallMs - atMs;
    const last = this.#offsets.get(server);
    if (errorMs <= MOST_ERROR_MS) this.#offsets.set(server, { offsetMs, errorMs, atMs });
    if (!last) return;
    const stepMs = Math.round(offsetMs - last.offsetMs);
    const explainedMs = STEP_MS + SLEW * (atMs - last.atMs) + (stepMs > 0 ? last.errorMs : errorMs);
    if (Math.abs(stepMs) <= explainedMs) return;
    this.#step = { stepMs, atMs };
    this.#emit?.('clock_stepped', { stepMs });
  }

  /** For the operator, as long as it may explain what they see. At most one line. */
  warnings(): string[] {
    if (!this.#step || this.#clock.monotonicMs() - this.#step.atMs >= STEP_IS_REPORTED_FOR_MS) return [];
    const { stepMs } = this.#step;
    const when = stepMs > 0 ? 'early' : 'late';
    return [`the clock of the store's host was stepped by ${stepMs} ms: records expire ${when}`];
  }
}
