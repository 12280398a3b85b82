import cluster from 'node:cluster';
import { createServer, type Server } from 'node:http';
import { availableParallelism } from 'node:os';
import { type AdminSource, createAdmin } from '../admin/application.ts';
import type { Config } from '../config/schema.ts';
import { Gateway, shutdownWithinMs } from '../gateway/gateway.ts';
import { systemClock } from '../kernel/clock.ts';
import type { KeyReload } from '../kernel/key-reload.ts';
import { listen } from '../kernel/listen.ts';
import { logReload } from '../observability/key-observer.ts';
import { createLogger, type Logger } from '../observability/logger.ts';
import { Primary } from '../workers/primary.ts';
import { obeyPrimary, tellMetrics, tellReload } from '../workers/worker.ts';

/** What serves until it is shut down. */
export interface Running {
  port: number;
  adminPort: number;
  warnings(): Promise<string[]>;
  reloadKeys(): void;
  shutdown(): Promise<void>;
  /** Ends the worker processes at once. */
  abort(): void;
}

/** Runs the configured gateway: in this process, or in worker processes behind this one. */
export async function serve(config: Config): Promise<Running | undefined> {
  const logger = createLogger(config.log.level);
  let reloadKeys = () => {};
  // Without a listener, SIGHUP would end the process in the middle of what it executes. The primary passes it on.
  process.on('SIGHUP', () => reloadKeys());
  if (cluster.isWorker) {
    await serveAsWorker(config, logger);
    return undefined;
  }
  const count = config.workers === 'auto' ? availableParallelism() : config.workers;
  const running =
    count === 1 ? await serveAlone(config, logger) : await serveWithWorkers(config, count, logger);
  reloadKeys = () => running.reloadKeys();
  for (const warning of await running.warnings()) logger.warn(warning);
  logger.info({ port: running.port, adminPort: running.adminPort, workers: count }, 'listening');
  return running;
}

async function serveAlone(config: Config, logger: Logger): Promise<Running> {
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

async function serveWithWorkers(config: Config, count: number, logger: Logger): Promise<Running> {
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

async function serveAsWorker(config: Config, logger: Logger): Promise<void> {
  const gateway = await Gateway.open(config, { clock: systemClock, logger, onReload: tellReload });
  const port = await listen(gateway.server, config.listen.host, config.listen.port);
  let ending = false;
  const shutDown = async () => {
    if (ending) return;
    ending = true;
    await gateway.shutdown();
    await tellMetrics(gateway);
    process.exit();
  };
  // Ctrl-C reaches every process of a terminal; the primary says when to end.
  process.on('SIGINT', () => {});
  process.on('SIGTERM', () => void shutDown());
  obeyPrimary(gateway, port, () => void shutDown());
}

async function openAdmin(config: Config, source: AdminSource): Promise<{ server: Server; port: number }> {
  const server = createServer(createAdmin(source, config.admin.token));
  return { server, port: await listen(server, config.admin.host, config.admin.port) };
}

/** The admin port answers until the end, so that readiness can be seen to go. */
async function closeAll(shutdown: () => Promise<void>, admin: Server): Promise<void> {
  await shutdown();
  admin.closeAllConnections();
  await new Promise<void>((resolve) => admin.close(() => resolve()));
}

/**
 * Shuts down on SIGTERM or SIGINT, and at once on the second.
 *
 * @param after called when all is shut down, before the process ends
 */
export function shutDownOnSignal(running: Running, after: () => Promise<void> = async () => {}): void {
  let ending = false;
  const shutDown = () => {
    if (ending) return;
    ending = true;
    void running
      .shutdown()
      .then(after)
      .finally(() => process.exit());
  };
  let signals = 0;
  const onSignal = () => {
    signals++;
    if (signals === 1) return shutDown();
    running.abort();
    process.exit(1);
  };
  process.on('SIGTERM', onSignal).on('SIGINT', onSignal);
}
