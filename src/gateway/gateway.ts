import type { Server } from 'node:http';
import { Server as NetServer } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Config } from '../config/schema.ts';
import type { Desk } from '../doubts/desk.ts';
import type { Emit } from '../telemetry/emit.ts';
import type { AllMetrics } from '../telemetry/metrics.ts';
import { openAdminPort } from './admin-port.ts';
import { type Application, listen, listenOn } from './http-server.ts';
import { type GatewayTools, openParts, type Parts } from './open.ts';
import { Readiness } from './readiness.ts';

/**
 * How long a shutdown waits, after the last connection was accepted, for connections that have not sent a request yet. Then it
 * closes them. A client whose first request is on its way would not know whether it was executed.
 */
const FIRST_REQUEST_WITHIN_MS = 1000;

/** Start, reload and graceful shutdown of one gateway. `open.ts` makes its parts. */
export class RunningGateway {
  readonly server: Server;
  /** The application that `server` has. */
  readonly app: Application;
  readonly metrics: AllMetrics;
  readonly emit: Emit;
  /** Lists and shows records to operators, and resolves keys in doubt. */
  readonly desk: Desk;
  readonly readiness: Readiness;
  #config: Config;
  #adminPort: Awaited<ReturnType<typeof openAdminPort>> | undefined;
  readonly #tools: GatewayTools;
  readonly #parts: Parts;
  /** Whether other processes may accept from the socket that `server` listens on. */
  #isSocketInherited = false;
  #hasBegun = false;

  /** @throws {Error} with a message for the operator if the store or the keys cannot be opened */
  static async open(config: Config, tools: GatewayTools): Promise<RunningGateway> {
    return new RunningGateway(config, tools, await openParts(config, tools));
  }

  private constructor(config: Config, tools: GatewayTools, parts: Parts) {
    this.#config = config;
    this.#tools = tools;
    this.#parts = parts;
    this.server = parts.server;
    this.app = parts.app;
    this.metrics = parts.metrics;
    this.emit = parts.emit;
    this.desk = parts.desk;
    this.readiness = new Readiness(config, parts, tools.clock);
    // `oncegate check` opens a gateway too. It never listens, so it does not visit the store, and sends no lookups.
    this.server.once('listening', () => this.begin());
  }

  /**
   * Opens the admin port, and then listens on `listen.host` and `listen.port`. Call it last: a start that fails after it cuts the
   * connections that were accepted.
   *
   * @param inherited a listening socket that this process has inherited, in place of `listen.host` and `listen.port`
   * @returns the ports
   */
  async listen(inherited?: number): Promise<{ port: number; adminPort: number }> {
    this.#adminPort = await openAdminPort(this.#config, this, this.#tools.clock);
    this.#isSocketInherited = inherited !== undefined;
    const { host, port: configured } = this.#config.listen;
    const port =
      inherited === undefined
        ? await listen(this.server, host, configured)
        : await listenOn(this.server, inherited);
    return { port, adminPort: this.#adminPort.port };
  }

  /** The console's sessions. Undefined before `listen`. */
  get sessions() {
    return this.#adminPort?.sessions;
  }

  /**
   * Visits the store, and from now on watches its identity and counts the keys in doubt. Looks up those that other gateways left. A
   * gateway that listens does so by itself. A second call does nothing.
   */
  begin(): void {
    if (this.#hasBegun) return;
    this.#hasBegun = true;
    const { watch, doubtGauges, observation } = this.#parts;
    watch?.begin();
    doubtGauges.begin();
    // A gateway that only observes sends no lookups.
    if (!observation) void this.#lookUpAbandoned();
  }

  /**
   * Puts the sections of the configuration that may change in force: see `mergeReload`. Requests that have begun end under
   * the options with which they began.
   */
  async reload(config: Config): Promise<void> {
    const before = this.#config;
    if (!(await this.#parts.reload(config))) return;
    this.#config = config;
    this.readiness.config = config;
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
    const { lifecycle, requestLog, engine, upgrades } = this.#parts;
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
    await Promise.race([requestLog.open.idle(), grace]);
    await engine.drain(Math.max(0, endMs - clock.monotonicMs()));
    await Promise.race([disconnected, silence]);
    await this.shutdownNow();
  }

  /** Closes everything at once, in the reverse order of its opening: see {@link openParts}. */
  async shutdownNow(): Promise<void> {
    await this.#parts.closing.disposeAsync();
    // Last, so that /readyz answers 503 during the shutdown.
    await this.#adminPort?.close();
  }
}
