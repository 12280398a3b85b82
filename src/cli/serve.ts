import cluster from 'node:cluster';
import { createServer, type Server } from 'node:http';
import { availableParallelism } from 'node:os';
import { type AdminSource, createAdmin } from '../admin/application.ts';
import { loadConfig } from '../config/load.ts';
import type { Config } from '../config/schema.ts';
import { Gateway, shutdownWithinMs } from '../gateway/gateway.ts';
import { systemClock } from '../kernel/clock.ts';
import type { KeyReload } from '../kernel/context.ts';
import { createLogger, type Logger } from '../observability/logger.ts';
import { logReload } from '../observability/observer.ts';
import { Primary } from '../workers/primary.ts';
import { followPrimary, reportMetrics, reportReload } from '../workers/worker.ts';
import { readArguments, required } from './arguments.ts';

const USAGE = `oncegate serve --config FILE

Runs the gateway until SIGTERM or SIGINT. config/gateway.example.yaml shows all options.
`;

export async function serve(args: string[]): Promise<void> {
  const options = readArguments(args, { config: { type: 'string' } }, USAGE);
  if (!options) return;
  await serveFile(required(options.config, 'config', USAGE));
}

/** Runs the gateway of a configuration file, for `serve --config` and for `start --config`. */
export async function serveFile(file: string): Promise<void> {
  const config = loadConfig(file, process.env);
  if (cluster.isWorker) return await startWorker(config, createLogger(config.log.level));
  const starting = startGateway(config);
  shutDownOnSignal(starting);
  await starting;
}

/** A gateway that listens, in this process or in its workers. */
export interface RunningGateway {
  port: number;
  adminPort: number;
  warnings(): Promise<string[]>;
  reloadKeys(): void;
  shutdown(): Promise<void>;
  /** Kills the workers at once. Without workers it does nothing. */
  abort(): void;
}

/** Resolves when the gateway listens. Not for a worker: see {@link startWorker}. */
export async function startGateway(config: Config): Promise<RunningGateway> {
  const logger = createLogger(config.log.level);
  let reloadKeys = () => {};
  // Without a listener, SIGHUP would end the process while requests execute. The primary forwards it to the workers.
  process.on('SIGHUP', () => reloadKeys());
  const count = config.workers === 'auto' ? availableParallelism() : config.workers;
  const running = count === 1 ? await startAlone(config, logger) : await startPrimary(config, count, logger);
  reloadKeys = () => running.reloadKeys();
  for (const warning of await running.warnings()) logger.warn(warning);
  logger.info({ port: running.port, adminPort: running.adminPort, workers: count }, 'listening');
  return running;
}

async function startAlone(config: Config, logger: Logger): Promise<RunningGateway> {
  const gateway = await Gateway.open(config, { clock: systemClock, logger });
  try {
    const port = await listen(gateway.server, config.listen.host, config.listen.port);
    const source: AdminSource = {
      metrics: () => gateway.metrics.text(),
      checks: () => gateway.checks(),
      records: (question) => gateway.desk.answer(question),
    };
    const admin = await openAdmin(config, source);
    return {
      port,
      adminPort: admin.port,
      warnings: () => gateway.warnings(),
      reloadKeys: () => void gateway.reloadKeys(),
      abort: () => {},
      shutdown: () => closeAll(() => gateway.shutdown(), admin.server),
    };
  } catch (error) {
    await gateway.shutdownNow();
    throw error;
  }
}

async function startPrimary(config: Config, count: number, logger: Logger): Promise<RunningGateway> {
  const log = (fields: object, message: string) => logger.warn(fields, message);
  const onReload = (reload: KeyReload) => logReload(logger, reload);
  const primary = new Primary({ count, shutdownMs: shutdownWithinMs(config), log, onReload });
  try {
    const port = await primary.start();
    const admin = await openAdmin(config, primary);
    return {
      port,
      adminPort: admin.port,
      warnings: () => primary.warnings(),
      reloadKeys: () => primary.reloadKeys(),
      abort: () => primary.kill(),
      shutdown: () => closeAll(() => primary.shutdown(), admin.server),
    };
  } catch (error) {
    await primary.shutdown();
    throw error;
  }
}

/** The primary controls a worker: it tells it when to reload and when to shut down. */
async function startWorker(config: Config, logger: Logger): Promise<void> {
  process.on('SIGHUP', () => {});
  const gateway = await Gateway.open(config, { clock: systemClock, logger, onReload: reportReload });
  const port = await listen(gateway.server, config.listen.host, config.listen.port);
  let isShuttingDown = false;
  const shutDown = async () => {
    if (isShuttingDown) return;
    isShuttingDown = true;
    await gateway.shutdown();
    await reportMetrics(gateway);
    process.exit();
  };
  // Ctrl-C sends SIGINT to the workers too. They ignore it: the primary tells them when to shut down.
  process.on('SIGINT', () => {});
  process.on('SIGTERM', () => void shutDown());
  followPrimary(gateway, port, () => void shutDown());
}

async function openAdmin(config: Config, source: AdminSource): Promise<{ server: Server; port: number }> {
  const server = createServer(createAdmin(source, config.admin.token));
  return { server, port: await listen(server, config.admin.host, config.admin.port) };
}

/** Closes the admin port last, so that /readyz answers 503 during the shutdown. */
async function closeAll(shutdown: () => Promise<void>, admin: Server): Promise<void> {
  await shutdown();
  admin.closeAllConnections();
  await new Promise<void>((resolve) => admin.close(() => resolve()));
}

/**
 * The first SIGTERM or SIGINT starts a graceful shutdown. The second one ends the process at once. Call it before the start has
 * ended: a gateway serves before that, and without a listener a signal would cut what it executes.
 *
 * @param afterwards called after the shutdown, before the process ends
 */
export function shutDownOnSignal(
  starting: Promise<RunningGateway>,
  afterwards: () => Promise<void> = async () => {},
): void {
  let running: RunningGateway | undefined;
  let signals = 0;
  const shutDown = (started: RunningGateway) => {
    running = started;
    if (signals === 0) return;
    void started
      .shutdown()
      .then(afterwards)
      .finally(() => process.exit());
  };
  const onSignal = () => {
    signals++;
    if (signals > 1) {
      running?.abort();
      process.exit(1);
    }
    if (running) shutDown(running);
  };
  // A start that fails ends the process elsewhere.
  starting.then(shutDown, () => {});
  process.on('SIGTERM', onSignal).on('SIGINT', onSignal);
}

/**
 * How many connections may wait to be accepted (the operating system may allow fewer). It drops each further connection,
 * whose client then tries again only a second later.
 */
const BACKLOG = 4096;

/** Resolves to the port. @throws the operating system's error if the port cannot be used */
export function listen(server: Server, host: string, port: number): Promise<number> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen({ port, host, backlog: BACKLOG }, () => {
      server.off('error', reject);
      const address = server.address();
      resolve(typeof address === 'object' && address ? address.port : port);
    });
  });
}
