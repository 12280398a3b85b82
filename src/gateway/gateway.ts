import type { Server } from 'node:http';
import { Server as NetServer } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Check } from '../admin/source.ts';
import { reachable } from '../backend/lookup.ts';
import type { Config } from '../config/schema.ts';
import type { Desk } from '../doubts/desk.ts';
import { policyWarnings } from '../idempotency/options.ts';
import { type KeySource, keyWarnings } from '../keys/key-source.ts';
import type { Store } from '../ledger/ledger.ts';
import type { StoreHealth } from '../store/contract.ts';
import type { Metrics } from '../telemetry/metrics.ts';
import type { Certificates } from './certificates.ts';
import { openParts, type Parts } from './composition.ts';
import { WarningCounts, type Warnings } from './config-metrics.ts';
import { type App, listen, listenOn } from './http-server.ts';
import type { GatewayTools } from './resources.ts';

/** How long a shutdown waits for the last observations. */
const OBSERVED_WITHIN_MS = 2000;

/**
 * How often /readyz asks the store and the backend at most, in a second. It needs no token, so a flood of requests for it must
 * not become a flood of writes and of connections to the backend.
 */
const MOST_ASKED = 10;
const A_SECOND_MS = 1000;

/**
 * How long a shutdown waits, after the last connection was accepted, for connections that have not sent a request yet. Then it
 * closes them. A client whose first request is on its way would not know whether it was executed.
 */
const FIRST_REQUEST_WITHIN_MS = 1000;

/** How often the log says that a shutdown waits for the store. */
const LOG_EVERY_MS = 2000;

type PartsHealth = [store: StoreHealth, backend: Awaited<ReturnType<typeof reachable>>];

/** Start, readiness and graceful shutdown of one gateway. `composition.ts` makes its parts. */
export class Gateway {
  readonly server: Server;
  /** The application that `server` has. */
  readonly app: App;
  readonly metrics: Metrics;
  /** For operators: lists and shows records, and resolves keys in doubt. */
  readonly desk: Desk;
  #config: Config;
  readonly #tools: GatewayTools;
  readonly #parts: Parts;
  readonly #warningCounts: WarningCounts;
  /** Whether other processes may accept from the socket that `server` listens on. */
  #isSocketInherited = false;
  /** The last times that /readyz asked the store and the backend, at most {@link MOST_ASKED}. */
  #asked: { atMs: number; answers: Promise<PartsHealth> }[] = [];

  /** @throws {Error} with a message for the operator if the store or the keys cannot be opened */
  static async open(config: Config, tools: GatewayTools): Promise<Gateway> {
    return new Gateway(config, tools, await openParts(config, tools));
  }

  private constructor(config: Config, tools: GatewayTools, parts: Parts) {
    this.#config = config;
    this.#tools = tools;
    this.#parts = parts;
    this.server = parts.server;
    this.app = parts.app;
    this.metrics = parts.metrics;
    this.desk = parts.desk;
    const { clock } = tools;
    this.#warningCounts = new WarningCounts(
      parts.metrics,
      () => clock.monotonicMs(),
      async () => this.#withWatched(await findWarnings(this.#config, parts, clock.wallMs())),
    );
    // `oncegate check` opens a gateway too. It never listens, so it does not mark the store, and sends no lookups.
    this.server.once('listening', () => this.watchStore());
    this.server.once('listening', () => parts.doubtGauges.begin());
    // A gateway that only observes sends no requests of its own.
    if (!parts.observation) this.server.once('listening', () => void this.#lookUpAbandoned());
  }

  /**
   * Listens on `listen.host` and `listen.port`. Resolves to the port.
   *
   * @param inherited a listening socket that this process has inherited, in their place
   */
  async listen(inherited?: number): Promise<number> {
    this.#isSocketInherited = inherited !== undefined;
    const { host, port } = this.#config.listen;
    return inherited === undefined
      ? await listen(this.server, host, port)
      : await listenOn(this.server, inherited);
  }

  /** Marks the store, and looks at it from now on. A gateway that listens does so by itself. */
  watchStore(): void {
    this.#parts.watch?.begin();
  }

  /** The checks that /readyz shows. The gateway is ready if all are ok. */
  async checks(): Promise<Check[]> {
    const { keys, certificates, lifecycle, observation } = this.#parts;
    const [stored, upstream] = await this.#ask();
    const watched = this.#parts.watch?.healthOf(stored) ?? stored;
    const found = observation ? notNeeded(watched) : watched;
    this.#warningCounts.set({ store: found.warnings });
    const warnings = policyWarnings(this.#config);
    const policies: Check = { name: 'operations', ok: true, detail: 'declared', warnings };
    // Always ok: the old certificate stays in use.
    const certified: Check = {
      name: 'certificates',
      ok: true,
      detail: 'loaded',
      warnings: certificates.warnings(),
    };
    const { draining } = lifecycle;
    return [
      { name: 'store', ok: found.ok, detail: found.detail, warnings: found.warnings },
      { name: 'upstream', ...upstream },
      { name: 'keys', ok: true, detail: keys.health().detail },
      ...(certificates.count > 0 ? [certified] : []),
      ...(warnings.length > 0 ? [policies] : []),
      { name: 'draining', ok: !draining, detail: draining ? 'shutting down' : 'serving' },
    ];
  }

  /** What the store and the backend say now, or said within the last second if they were asked too often since then. */
  #ask(): Promise<PartsHealth> {
    const nowMs = this.#tools.clock.monotonicMs();
    const [first] = this.#asked;
    const last = this.#asked.at(-1);
    if (last && first && this.#asked.length === MOST_ASKED && nowMs - first.atMs < A_SECOND_MS)
      return last.answers;
    const { store, upstreamTls } = this.#parts;
    const { url, connectTimeoutMs } = this.#config.upstream;
    const answers = Promise.all([store.health(), reachable(url, connectTimeoutMs, upstreamTls)]);
    this.#asked = [...this.#asked.slice(1 - MOST_ASKED), { atMs: nowMs, answers }];
    return answers;
  }

  /** Warnings for the operator at start, one line each. */
  async warnings(): Promise<string[]> {
    const watched = (this.#parts.watch?.atStart ?? []).map((warning) => `store: ${warning}`);
    const found = await findWarnings(this.#config, this.#parts, this.#tools.clock.wallMs());
    this.#warningCounts.set(this.#withWatched(found));
    return [...watched, ...linesOf(found)];
  }

  #withWatched({ store, ...others }: Warnings): Warnings {
    return { ...others, store: [...store, ...(this.#parts.watch?.warnings ?? [])] };
  }

  /** As {@link warnings}, with those that ask the backend about a secret key. For `oncegate check`. */
  async checkWarnings(): Promise<string[]> {
    const asked = (await this.#parts.keys.askWarnings?.()) ?? [];
    return [...(await this.warnings()), ...asked.map((text) => `keys: ${text}`)];
  }

  /**
   * Puts the sections of the configuration that may change in force: see `mergeReload`. Requests that have begun end under
   * the options with which they began.
   */
  reload(config: Config): void {
    const before = this.#config;
    this.#parts.reload(config);
    this.#config = config;
    const hadLookup = ({ name }: { name: string }) =>
      before.operations.some((earlier) => earlier.name === name && earlier.idempotency.lookup);
    if (this.#parts.observation) return;
    if (config.operations.some((operation) => operation.idempotency.lookup && !hadLookup(operation)))
      void this.#lookUpAbandoned();
  }

  #lookUpAbandoned(): Promise<void> {
    return this.#parts.lookups.lookUpAbandoned(this.#config.lock.leaseMs);
  }

  /** Reads the secret keys and the certificates again, without waiting for the next poll. */
  async reloadKeys(): Promise<void> {
    await Promise.all([this.#parts.keys.reload(), this.#parts.certificates.reload()]);
  }

  /**
   * Graceful shutdown. /readyz fails at once, and for `shutdown.delayMs` the gateway still accepts requests. Then it stops
   * accepting, waits up to `shutdown.graceMs` for running requests, and closes everything ({@link shutdownNow}). It accepts no
   * more connections from an inherited socket at all: another process accepts them, or they wait for the next one.
   */
  async shutdown(): Promise<void> {
    const { delayMs, graceMs } = this.#config.shutdown;
    const { lifecycle, access, engine, upgrades } = this.#parts;
    const { clock } = this.#tools;
    const disconnected = new Promise<void>((resolve) => this.server.once('close', resolve));
    lifecycle.drain();
    this.#parts.endKeepAlive();
    // The method of http.Server would also close idle connections, on which merchants may be sending.
    if (this.#isSocketInherited) NetServer.prototype.close.call(this.server);
    await sleep(delayMs);
    lifecycle.close();
    this.server.close();
    const silence = sleep(FIRST_REQUEST_WITHIN_MS, undefined, { ref: false });
    upgrades.end();
    const endMs = clock.monotonicMs() + graceMs;
    const grace = new Promise<void>((resolve) => setTimeout(resolve, graceMs).unref());
    await Promise.race([access.idle(), grace]);
    await engine.drain(Math.max(0, endMs - clock.monotonicMs()));
    await Promise.race([disconnected, silence]);
    await this.shutdownNow();
  }

  /**
   * Aborts running requests: their keys are in doubt. Then waits for pending writes, up to `shutdown.completeMs`, and closes
   * the store last.
   */
  async shutdownNow(): Promise<void> {
    const { passthrough, executors, lookups, doubtGauges, keys, certificates } = this.#parts;
    const { store, rateLimiter, tracing } = this.#parts;
    this.server.close();
    this.server.closeAllConnections();
    passthrough.close();
    await Promise.all(executors.map((executor) => executor.destroy()));
    // The executors are gone, so stop lookups.
    await lookups.close();
    doubtGauges.close();
    await this.#untilStored();
    await keys.close();
    certificates.close();
    await this.#parts.watch?.close();
    rateLimiter?.close();
    await store.close();
    await tracing?.close();
  }

  /** Waits for pending writes: merchants may have responses that the store has not acknowledged. */
  async #untilStored(): Promise<void> {
    const { engine, observation } = this.#parts;
    const { completeMs } = this.#config.shutdown;
    const log = () => {
      const writes = engine.pendingWrites;
      const message = 'waiting for the store to take the last writes before this process ends';
      if (writes > 0) this.#tools.logger.warn({ writes, completeMs }, message);
    };
    const timer = setInterval(log, LOG_EVERY_MS);
    await engine.close(completeMs);
    await observation?.close(Math.min(completeMs, OBSERVED_WITHIN_MS));
    clearInterval(timer);
  }
}

/**
 * Under `mode: observe` a gateway whose store fails serves every request. Taking it out of service would harm merchants. A store
 * that a copy has closed is different: other gateways serve, and this one would send what they have executed.
 */
function notNeeded(health: StoreHealth): StoreHealth {
  const { ok, isClosed, detail, warnings } = health;
  if (ok || isClosed) return health;
  return {
    ok: true,
    detail,
    warnings: [...warnings, 'the store does not work: nothing is observed meanwhile'],
  };
}

interface Warned {
  store?: Store;
  keys?: KeySource | undefined;
  certificates: Certificates;
}

/** Warnings for the operator at start. They contain ids of secret keys, so /readyz does not show them. */
export async function findWarnings(
  config: Pick<Config, 'operations' | 'idempotency' | 'upstream'>,
  { store, keys, certificates }: Warned,
  nowMs: number,
): Promise<Warnings> {
  const names = config.operations.map(({ name }) => name);
  const entries = keys?.entries();
  return {
    store: (await store?.health())?.warnings ?? [],
    operations: policyWarnings(config),
    keys: entries ? keyWarnings(entries, names, nowMs) : [],
    certificates: certificates.warnings(),
  };
}

/** One line for each warning. */
export const linesOf = (found: Warnings): string[] =>
  Object.entries(found).flatMap(([about, texts]) => texts.map((text) => `${about}: ${text}`));
