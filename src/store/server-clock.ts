import type { Clock } from '../lib/clock.ts';

/** The server's wall clock minus our monotonic clock, exact to `errorMs`, at `atMs` on the monotonic clock. */
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

/** Watches the wall clocks of the servers of a store, by which records expire. */
export class ServerClocks {
  readonly #clock: Clock;
  readonly #offsets = new Map<string, Offset>();
  #step: { stepMs: number; atMs: number } | undefined;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /**
   * Compares a clock with what it showed before.
   *
   * @param name of the server. A name that leads to another one after a failover stays the same
   * @param wallMs what its clock shows now
   * @param askedMs when it was asked, on the monotonic clock
   * @returns by how much it was stepped; undefined: not
   */
  compare(name: string, wallMs: number, askedMs: number): number | undefined {
    const atMs = this.#clock.monotonicMs();
    const errorMs = atMs - askedMs;
    const offsetMs = wallMs - atMs;
    const last = this.#offsets.get(name);
    if (errorMs <= MOST_ERROR_MS) this.#offsets.set(name, { offsetMs, errorMs, atMs });
    if (!last) return undefined;
    const stepMs = Math.round(offsetMs - last.offsetMs);
    const explainedMs = STEP_MS + SLEW * (atMs - last.atMs) + (stepMs > 0 ? last.errorMs : errorMs);
    if (Math.abs(stepMs) <= explainedMs) return undefined;
    this.#step = { stepMs, atMs };
    return stepMs;
  }

  /** Of a step within the last hour. */
  warningFor(server: string): string | undefined {
    if (!this.#step || this.#clock.monotonicMs() - this.#step.atMs >= STEP_IS_REPORTED_FOR_MS)
      return undefined;
    const { stepMs } = this.#step;
    const when = stepMs > 0 ? 'early' : 'late';
    return `the clock of ${server}' host was stepped by ${stepMs} ms: records expire ${when}`;
  }
}
