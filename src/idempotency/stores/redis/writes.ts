import type { ChainableCommander } from 'ioredis';
import { StoreUnavailable } from '../../store.ts';
import type { RedisClient } from './connect.ts';

/** A command, issued on the client or on a pipeline. */
export type Issue = (to: RedisClient | ChainableCommander) => unknown;

/** A write's reply, and whether it has reached the replicas that were asked for. */
export interface Written<T> {
  reply: T;
  replicated: boolean;
}

interface Waiting {
  issue: Issue;
  resolve(written: Written<unknown>): void;
  reject(error: Error): void;
}

/**
 * Writes that replicas must have.
 *
 * WAIT speaks for its own connection only, so that it goes behind the writes in the same pipeline, and nothing is ever
 * sent again. It also holds that connection up; so there is one WAIT at a time, behind all the writes that came while the
 * last one was under way, and two of them fit into a command's time limit.
 */
export class Writes {
  readonly #client: RedisClient;
  readonly #replicas: number;
  readonly #waitMs: number;
  #waiting: Waiting[] = [];
  #busy = false;

  constructor(client: RedisClient, replicas: number, timeoutMs: number) {
    this.#client = client;
    this.#replicas = replicas;
    this.#waitMs = Math.max(1, Math.floor(timeoutMs / 4));
  }

  /** Issues the command at once where no replica is waited for, else with the next batch. */
  write<T>(issue: Issue): Promise<Written<T>> {
    if (this.#replicas === 0)
      return (issue(this.#client) as Promise<T>).then((reply) => ({ reply, replicated: true }));
    const written = new Promise<Written<unknown>>((resolve, reject) => {
      this.#waiting.push({ issue, resolve, reject });
    });
    if (!this.#busy) void this.#flush();
    return written as Promise<Written<T>>;
  }

  async #flush(): Promise<void> {
    this.#busy = true;
    // Whatever is issued in this turn goes along.
    await Promise.resolve();
    while (this.#waiting.length > 0) await this.#send(this.#waiting.splice(0));
    this.#busy = false;
  }

  async #send(batch: Waiting[]): Promise<void> {
    try {
      const pipeline = this.#client.pipeline();
      for (const { issue } of batch) issue(pipeline);
      pipeline.wait(this.#replicas, this.#waitMs);
      const results = (await pipeline.exec()) ?? [];
      const reached = Number(results[batch.length]?.[1] ?? 0);
      batch.forEach(({ resolve, reject }, i) => {
        const [error, reply] = results[i] ?? [new StoreUnavailable('redis: no answer'), undefined];
        if (error) reject(error);
        else resolve({ reply, replicated: reached >= this.#replicas });
      });
    } catch (error) {
      for (const { reject } of batch) reject(error as Error);
    }
  }
}
