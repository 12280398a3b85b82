import type { Clock } from '../kernel/clock.ts';
import type { ProbeAnswer } from '../kernel/exchange.ts';

export interface ProbeQueueOptions {
  /** Probes that run at once. */
  maxProbes: number;
  /** Probes of new keys in a second. */
  maxPerSecond: number;
  /** How long a probe may wait for its turn. Milliseconds. */
  waitMs: number;
}

/** `overloaded`: the probe has not begun, because too many others did. */
export type Probed = ProbeAnswer | { kind: 'overloaded' };

interface Job {
  isNew: boolean;
  /** Begins the probe. Must not throw. */
  probe: () => Promise<ProbeAnswer>;
  end: (probed: Probed) => void;
  /** Ends the wait in the queue. */
  timer: NodeJS.Timeout;
}

/**
 * Bounds the probes of secret keys. Anyone can invent new keys, so these take at most half of the probes that run at once,
 * and only a number of them begins in a second. A key that the backend has accepted before goes ahead of all new ones.
 */
export class ProbeQueue {
  readonly #options: ProbeQueueOptions;
  readonly #clock: Pick<Clock, 'monotonicMs'>;
  readonly #known: Job[] = [];
  readonly #new: Job[] = [];
  #running = 0;
  #runningNew = 0;
  /** How many probes of new keys may begin now. Grows with time, up to a second's worth. */
  #permits: number;
  #permitsAtMs: number;
  #permitTimer: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(options: ProbeQueueOptions, clock: Pick<Clock, 'monotonicMs'>) {
    this.#options = options;
    this.#clock = clock;
    this.#permits = options.maxPerSecond;
    this.#permitsAtMs = clock.monotonicMs();
  }

  /** Runs the probe when it is its turn. Never rejects. */
  run(isNew: boolean, probe: () => Promise<ProbeAnswer>): Promise<Probed> {
    return new Promise((end) => {
      if (this.#closed) return end({ kind: 'overloaded' });
      const queue = isNew ? this.#new : this.#known;
      const giveUp = () => {
        queue.splice(queue.indexOf(job), 1);
        end({ kind: 'overloaded' });
      };
      const job: Job = { isNew, probe, end, timer: setTimeout(giveUp, this.#options.waitMs) };
      queue.push(job);
      this.#next();
    });
  }

  /** Probes that wait for their turn. */
  get queued(): number {
    return this.#known.length + this.#new.length;
  }

  /** Ends the wait of all probes that have not begun. */
  close(): void {
    this.#closed = true;
    clearTimeout(this.#permitTimer);
    for (const job of [...this.#known.splice(0), ...this.#new.splice(0)]) {
      clearTimeout(job.timer);
      job.end({ kind: 'overloaded' });
    }
  }

  #next(): void {
    while (this.#running < this.#options.maxProbes) {
      const job = this.#known.shift() ?? this.#nextNew();
      if (!job) return;
      void this.#begin(job);
    }
  }

  #nextNew(): Job | undefined {
    const { maxProbes } = this.#options;
    if (this.#new.length === 0 || this.#runningNew >= Math.floor(maxProbes / 2)) return undefined;
    return this.#takePermit() ? this.#new.shift() : undefined;
  }

  #takePermit(): boolean {
    const { maxPerSecond } = this.#options;
    const nowMs = this.#clock.monotonicMs();
    const grown = ((nowMs - this.#permitsAtMs) * maxPerSecond) / 1000;
    this.#permits = Math.min(maxPerSecond, this.#permits + grown);
    this.#permitsAtMs = nowMs;
    if (this.#permits >= 1) {
      this.#permits--;
      return true;
    }
    this.#permitTimer ??= setTimeout(
      () => {
        this.#permitTimer = undefined;
        this.#next();
      },
      Math.ceil(((1 - this.#permits) * 1000) / maxPerSecond),
    );
    return false;
  }

  async #begin({ isNew, probe, end, timer }: Job): Promise<void> {
    clearTimeout(timer);
    this.#running++;
    if (isNew) this.#runningNew++;
    const answer = await probe();
    this.#running--;
    if (isNew) this.#runningNew--;
    end(answer);
    this.#next();
  }
}
