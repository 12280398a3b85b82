import type { Clock } from '../lib/clock.ts';
import type { ProbeAnswer } from '../lib/exchange.ts';
import type { UpstreamKeyOptions } from './auth-options.ts';

export interface ProbeQueueOptions extends Pick<UpstreamKeyOptions, 'maxProbes' | 'maxPerSecond'> {
  /** How long a probe may wait for its turn. Milliseconds. */
  waitMs: number;
}

/** `overloaded`: the probe has not begun, because too many others did. */
export type Probed = ProbeAnswer | { kind: 'overloaded' };

interface Job {
  /** Who asks, if the key is new. */
  client: string | undefined;
  /** Begins the probe. Must not throw. */
  probe: () => Promise<ProbeAnswer>;
  end: (probed: Probed) => void;
  /** Ends the wait in the queue. */
  timer: NodeJS.Timeout;
}

/**
 * Bounds the probes of secret keys. Anyone can invent new keys, so these take at most half of the probes that run at once,
 * and only a number of them begins in a second. The clients who wait with new keys take turns, so that one of them cannot make the
 * others wait for all of its keys. A key that the backend has accepted before goes ahead of all new ones.
 */
export class ProbeQueue {
  readonly #options: ProbeQueueOptions;
  readonly #clock: Pick<Clock, 'monotonicMs'>;
  readonly #known: Job[] = [];
  /** The probes of new keys by client, in the order of the clients' turns. */
  readonly #new = new Map<string, Job[]>();
  #running = 0;
  #runningNew = 0;
  /** When the next probe of a new key may begin. */
  #newAtMs = Number.NEGATIVE_INFINITY;
  #permitTimer: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(options: ProbeQueueOptions, clock: Pick<Clock, 'monotonicMs'>) {
    this.#options = options;
    this.#clock = clock;
  }

  /**
   * Runs the probe when it is its turn. Never rejects.
   *
   * @param client who asks, if the key is new
   */
  run(client: string | undefined, probe: () => Promise<ProbeAnswer>): Promise<Probed> {
    return new Promise((end) => {
      if (this.#closed) return end({ kind: 'overloaded' });
      const queue = client === undefined ? this.#known : this.#queueOf(client);
      const giveUp = () => {
        queue.splice(queue.indexOf(job), 1);
        if (client !== undefined && queue.length === 0) this.#new.delete(client);
        end({ kind: 'overloaded' });
      };
      const job: Job = { client, probe, end, timer: setTimeout(giveUp, this.#options.waitMs) };
      queue.push(job);
      this.#next();
    });
  }

  /** Ends the wait of all probes that have not begun. */
  close(): void {
    this.#closed = true;
    clearTimeout(this.#permitTimer);
    const waiting = [...this.#known.splice(0), ...[...this.#new.values()].flat()];
    this.#new.clear();
    for (const job of waiting) {
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
    const [turn] = this.#new;
    if (!turn || this.#runningNew >= Math.floor(maxProbes / 2) || !this.#takePermit()) return undefined;
    const [client, queue] = turn;
    const job = queue.shift();
    // The client's next turn comes after those of all others.
    this.#new.delete(client);
    if (queue.length > 0) this.#new.set(client, queue);
    return job;
  }

  #queueOf(client: string): Job[] {
    const queue = this.#new.get(client) ?? [];
    this.#new.set(client, queue);
    return queue;
  }

  /** Takes one of `maxPerSecond` permits. If none is left, a timer wakes the queue when there is one. At most those of one second add up. */
  #takePermit(): boolean {
    const nowMs = this.#clock.monotonicMs();
    const everyMs = 1000 / this.#options.maxPerSecond;
    this.#newAtMs = Math.max(this.#newAtMs, nowMs - 1000 + everyMs);
    if (this.#newAtMs <= nowMs) {
      this.#newAtMs += everyMs;
      return true;
    }
    this.#permitTimer ??= setTimeout(
      () => {
        this.#permitTimer = undefined;
        this.#next();
      },
      Math.ceil(this.#newAtMs - nowMs),
    );
    return false;
  }

  async #begin({ client, probe, end, timer }: Job): Promise<void> {
    clearTimeout(timer);
    const isNew = Number(client !== undefined);
    this.#running++;
    this.#runningNew += isNew;
    const answer = await probe();
    this.#running--;
    this.#runningNew -= isNew;
    end(answer);
    this.#next();
  }
}
