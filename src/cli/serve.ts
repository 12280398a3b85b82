import cluster from 'node:cluster';
import type { Server } from 'node:http';
import type { AdminSource } from '../admin/application.ts';
import type { ConfigFile } from '../config/config-file.ts';
import { loadConfig } from '../config/load.ts';
import { type Config, workersOf } from '../config/schema.ts';
import { openAdminPort } from '../gateway/admin-port.ts';
import { Gateway, shutdownWithinMs } from '../gateway/gateway.ts';
import { listen } from '../gateway/http-server.ts';
import { markFileOf } from '../gateway/store-watch.ts';
import { thisBuild } from '../kernel/build.ts';
import { systemClock } from '../kernel/clock.ts';
import type { KeyReload } from '../kernel/context.ts';
import { createLogger, type Logger } from '../observability/logger.ts';
import { configurationWarnings } from '../observability/metrics.ts';
import { logReload } from '../observability/observer.ts';
import { Primary } from '../workers/primary.ts';
import {
  askConfiguration,
  followConfiguration,
  followPrimary,
  reportMetrics,
  reportReload,
} from '../workers/worker.ts';
import { readArguments, required } from './arguments.ts';
import { configChecks, followConfigFile } from './config-follower.ts';

const USAGE = `oncegate serve --config FILE

Runs the gateway until SIGTERM or SIGINT. config/gateway.example.yaml shows all options. The sections operations, limits, log
and metrics are reloaded on SIGHUP and when the file changes; everything else needs a restart.
`;

export async function serve(args: string[]): Promise<void> {
  const options = readArguments(args, { config: { type: 'string' } }, USAGE);
  if (!options) return;
  await serveFile(required(options.config, 'config', USAGE));
}

/** Runs the gateway of a configuration file, for `serve --config` and for `start --config`. */
export async function serveFile(file: string): Promise<void> {
  if (cluster.isWorker) return await startWorker(file);
  const starting = startGateway(loadConfig(file, process.env), file);
  shutDownOnSignal(starting);
  await starting;
}

/** A gateway that listens, in this process or in its workers. */
export interface RunningGateway {
  port: number;
  adminPort: number;
  logger: Logger;
  warnings(): Promise<string[]>;
  /** Reads the secret keys and the configuration file again. */
  reload(): void;
  shutdown(): Promise<void>;
  /** Kills the workers at once. Without workers it does nothing. */
  abort(): void;
}

/**
 * Resolves when the gateway listens. Not for a worker: see {@link startWorker}.
 *
 * @param file the configuration file, if the gateway shall follow its changes and note the store's mark beside it
 */
export async function startGateway(config: Config, file?: string): Promise<RunningGateway> {
  const logger = createLogger(config.log.level);
  let reload = () => {};
  // Without a listener, SIGHUP would end the process while requests execute. The primary forwards it to the workers.
  process.on('SIGHUP', () => reload());
  const count = workersOf(config);
  const start = { config, file, logger };
  const running = count === 1 ? await startAlone(start) : await startPrimary(start, count);
  reload = () => running.reload();
  for (const warning of await running.warnings()) logger.warn({ warning }, 'something needs attention');
  const { port, adminPort } = running;
  const { mode } = config.idempotency;
  logger.info({ port, adminPort, workers: count, mode, ...thisBuild() }, 'listening');
  return running;
}

interface Start {
  config: Config;
  file: string | undefined;
  logger: Logger;
}

async function startAlone({ config, file, logger }: Start): Promise<RunningGateway> {
  const markFile = file && markFileOf(file, config);
  const gateway = await Gateway.open(config, { clock: systemClock, logger, ...(markFile && { markFile }) });
  try {
    const port = await listen(gateway.server, config.listen.host, config.listen.port);
    const configFile = followConfigFile(file, config, logger, {
      apply: async (changed) => gateway.reload(changed),
      count: (result) => gateway.countConfigReload(result),
      warnings: () => gateway.warnings(),
    });
    gateway.metrics.beforeReading(() =>
      gateway.metrics.configWarnings.set({ about: 'configuration' }, configFile?.warnings().length ?? 0),
    );
    const source: Omit<AdminSource, 'configuration'> = {
      metrics: (format) => gateway.metrics.text(format),
      checks: async () => [...(await gateway.checks()), ...configChecks(configFile)],
      records: (question) => gateway.desk.answer(question),
    };
    const admin = await openAdminPort(config, source, { clock: systemClock, logger, configFile });
    return {
      port,
      adminPort: admin.port,
      logger,
      warnings: () => gateway.warnings(),
      reload: () => {
        void gateway.reloadKeys();
        void configFile?.reload();
      },
      abort: () => {},
      shutdown: () => {
        configFile?.close();
        return closeAll(() => gateway.shutdown(), admin.server);
      },
    };
  } catch (error) {
    await gateway.shutdownNow();
    throw error;
  }
}

async function startPrimary({ config, file, logger }: Start, count: number): Promise<RunningGateway> {
  const log = (fields: object, message: string) => logger.warn(fields, message);
  const onReload = (reload: KeyReload) => logReload(logger, reload);
  let configFile: ConfigFile | undefined;
  const versions = () => configFile?.versions ?? [config];
  const shutdownMs = shutdownWithinMs(config);
  const ownMetrics = () => configurationWarnings(configFile?.warnings().length ?? 0);
  const primary = new Primary({ count, versions, ownMetrics, shutdownMs, log, onReload });
  try {
    const port = await primary.start();
    configFile = followConfigFile(file, config, logger, {
      apply: async (changed) => {
        logger.level = changed.log.level;
        await primary.reload(changed);
      },
      count: (result) => primary.countConfigReload(result),
      warnings: () => primary.warnings(),
    });
    const source: Omit<AdminSource, 'configuration'> = {
      metrics: (format) => primary.metrics(format),
      checks: async () => [...(await primary.checks()), ...configChecks(configFile)],
      records: (question) => primary.records(question),
    };
    const admin = await openAdminPort(config, source, { clock: systemClock, logger, configFile });
    return {
      port,
      adminPort: admin.port,
      logger,
      warnings: () => primary.warnings(),
      reload: () => {
        primary.reloadKeys();
        void configFile?.reload();
      },
      abort: () => primary.kill(),
      shutdown: () => {
        configFile?.close();
        return closeAll(() => primary.shutdown(), admin.server);
      },
    };
  } catch (error) {
    await primary.shutdown();
    throw error;
  }
}

/** The primary controls a worker: it tells it its configuration, when to reload and when to shut down. */
async function startWorker(file: string): Promise<void> {
  process.on('SIGHUP', () => {});
  const versions = await askConfiguration();
  const config = versions.at(-1) as Config;
  const logger = createLogger(config.log.level);
  const tools = { clock: systemClock, logger, onReload: reportReload, markFile: markFileOf(file, config) };
  const gateway = await Gateway.open(config, tools, versions.slice(0, -1));
  // A worker must not serve before it knows every version.
  await followConfiguration(gateway, versions);
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
  const signals: NodeJS.Signals[] = [];
  const shutDown = (started: RunningGateway) => {
    running = started;
    const [signal] = signals;
    if (signal === undefined) return;
    started.logger.info({ signal }, 'shutting down');
    void started
      .shutdown()
      .then(afterwards)
      .finally(() => process.exit());
  };
  const onSignal = (signal: NodeJS.Signals) => {
    signals.push(signal);
    if (signals.length > 1) {
      running?.abort();
      process.exit(1);
    }
    if (running) shutDown(running);
  };
  // A start that fails ends the process elsewhere.
  starting.then(shutDown, () => {});
  process.on('SIGTERM', onSignal).on('SIGINT', onSignal);
}
