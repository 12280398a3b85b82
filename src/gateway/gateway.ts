import type { Server } from 'node:http';
import type { Check } from '../admin/application.ts';
import { type KeySource, keyWarnings } from '../auth/key-source.ts';
import type { Config } from '../config/schema.ts';
import type { Desk } from '../idempotency/doubt/desk.ts';
import { policyWarnings } from '../idempotency/options.ts';
import type { Store } from '../idempotency/store.ts';
import type { Metrics } from '../observability/metrics.ts';
import { reachable } from '../upstream/lookup.ts';
import { type GatewayTools, openParts, type Parts } from './composition.ts';

/** How often the log says that a shutdown waits for the store. */
const LOG_EVERY_MS = 2000;

/** Factor for a time that is surely longer than a lease, although two clocks may differ. */
const PAST_LEASE = 1.1;

/** The longest that a graceful shutdown can take: the configured times, the last commands to the store, and a reserve. */
export const shutdownWithinMs = ({ shutdown, store }: Config): number =>
  shutdown.delayMs + shutdown.graceMs + shutdown.completeMs + 4 * store.timeoutMs + 5000;

/** Start, readiness and graceful shutdown of one gateway. `composition.ts` makes its parts. */
export class Gateway {
  readonly server: Server;
  readonly metrics: Metrics;
  /** For operators: lists and shows records, and resolves keys in doubt. */
  readonly desk: Desk;
  readonly #config: Config;
  readonly #tools: GatewayTools;
  readonly #parts: Parts;

  /** @throws {Error} with a message for the operator if the store or the keys cannot be opened */
  static async open(config: Config, tools: GatewayTools): Promise<Gateway> {
    return new Gateway(config, tools, await openParts(config, tools));
  }

  private constructor(config: Config, tools: GatewayTools, parts: Parts) {
    this.#config = config;
    this.#tools = tools;
    this.#parts = parts;
    this.server = parts.server;
    this.metrics = parts.metrics;
    this.desk = parts.desk;
    // `oncegate check` opens a gateway too. It never listens, so it sends no lookups.
    this.server.once('listening', () => void parts.doubts.lookUpAbandoned(config.lock.leaseMs * PAST_LEASE));
  }

  /** The checks that /readyz shows. The gateway is ready if all are ok. */
  async checks(): Promise<Check[]> {
    const { store, keys, lifecycle } = this.#parts;
    const { url, connectTimeoutMs } = this.#config.upstream;
    const [stored, upstream] = await Promise.all([store.health(), reachable(url, connectTimeoutMs)]);
    const { ok, detail } = keys.health();
    const warnings = policyWarnings(this.#config);
    const policies: Check = { name: 'operations', ok: true, detail: 'declared', warnings };
    const { draining } = lifecycle;
    return [
      { name: 'store', ...stored },
      { name: 'upstream', ...upstream },
      { name: 'keys', ok, detail },
      ...(warnings.length > 0 ? [policies] : []),
      { name: 'draining', ok: !draining, detail: draining ? 'shutting down' : 'serving' },
    ];
  }

  /** Warnings for the operator at start, one line each. */
  async warnings(): Promise<string[]> {
    return await startWarnings(this.#config, this.#parts, this.#tools.clock.wallMs());
  }

  /** Reads the secret keys again, without waiting for the next poll. */
  async reloadKeys(): Promise<void> {
    await this.#parts.keys.reload();
  }

  /**
   * Graceful shutdown. /readyz fails at once, and for `shutdown.delayMs` the gateway still accepts requests. Then it stops
   * accepting, waits up to `shutdown.graceMs` for running requests, and closes everything ({@link shutdownNow}).
   */
  async shutdown(): Promise<void> {
    const { delayMs, graceMs } = this.#config.shutdown;
    const { lifecycle, access, engine, upgrades } = this.#parts;
    const { clock } = this.#tools;
    lifecycle.drain();
    this.#parts.endKeepAlive();
    await new Promise((resolve) => setTimeout(resolve, delayMs));
    lifecycle.close();
    this.server.close();
    upgrades.end();
    const endMs = clock.monotonicMs() + graceMs;
    const grace = new Promise<void>((resolve) => setTimeout(resolve, graceMs).unref());
    await Promise.race([access.idle(), grace]);
    await engine.drain(Math.max(0, endMs - clock.monotonicMs()));
    await this.shutdownNow();
  }

  /**
   * Aborts running requests: their keys are in doubt. Then waits for pending writes, up to `shutdown.completeMs`, and closes
   * the store last.
   */
  async shutdownNow(): Promise<void> {
    const { passthrough, executors, doubts, keys, store } = this.#parts;
    this.server.close();
    this.server.closeAllConnections();
    passthrough.close();
    await Promise.all(executors.map((executor) => executor.destroy()));
    // The executors are gone, so stop lookups.
    await doubts.close();
    await this.#untilStored();
    keys.close();
    await store.close();
  }

  /** Waits for pending writes: merchants may have responses that the store has not acknowledged. */
  async #untilStored(): Promise<void> {
    const { engine } = this.#parts;
    const { completeMs } = this.#config.shutdown;
    const log = () => {
      const writes = engine.pendingWrites;
      const message = 'waiting for the store to take the last writes before this process ends';
      if (writes > 0) this.#tools.logger.warn({ writes, completeMs }, message);
    };
    const timer = setInterval(log, LOG_EVERY_MS);
    await engine.close(completeMs);
    clearInterval(timer);
  }
}

/** Warnings for the operator at start, one line each. They contain ids of secret keys, so /readyz does not show them. */
export async function startWarnings(
  config: Pick<Config, 'operations' | 'idempotency'>,
  { store, keys }: { store?: Store; keys: KeySource },
  nowMs: number,
): Promise<string[]> {
  const names = config.operations.map(({ name }) => name);
  const found = {
    store: (await store?.health())?.warnings ?? [],
    operations: policyWarnings(config),
    keys: keyWarnings(keys.entries(), names, nowMs),
  };
  return Object.entries(found).flatMap(([about, texts]) => texts.map((text) => `${about}: ${text}`));
}
