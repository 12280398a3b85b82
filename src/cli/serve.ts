import { statSync } from 'node:fs';
import { loadConfig } from '../config/load.ts';
import type { Config } from '../config/schema.ts';
import type { RunningGateway } from '../gateway/gateway.ts';
import { inheritedSocket } from '../gateway/http-server.ts';
import { identityFileOf } from '../ledger/identity-file.ts';
import { prepareStore } from '../ledger/open-store.ts';
import { systemClock } from '../lib/clock.ts';
import { thisBuild } from '../lib/program.ts';
import type { Emit } from '../telemetry/emit.ts';
import { createLogger, type Logger } from '../telemetry/logger.ts';
import { explainFailure, namingPort, readArguments, required, TEXT, type Terminal } from './arguments.ts';
import { ConfigFile } from './config-file.ts';

const USAGE = `oncegate serve --config FILE

Runs the gateway until SIGTERM or SIGINT. config/gateway.example.yaml shows all options. The sections operations, limits, log
and metrics are reloaded on SIGHUP and when the file changes; everything else needs a restart.
`;

export async function serve(args: string[], { env }: Terminal): Promise<void> {
  const options = readArguments(args, { config: TEXT }, USAGE);
  await serveFile(required(options.config, 'config', USAGE), env);
}

/** Runs the gateway of a configuration file, for `serve --config` and for `start --config`. */
export async function serveFile(file: string, env: NodeJS.ProcessEnv): Promise<void> {
  const config = loadConfig(file, env);
  const ports = { 'listen.port': config.listen.port, 'admin.port': config.admin.port };
  const starting = startGateway(config, { env }, file).catch(namingPort(ports));
  shutDownOnSignal(starting);
  await starting;
}

/** A gateway that listens. */
export interface ServedGateway {
  port: number;
  adminPort: number;
  emit: Emit;
  sessions: RunningGateway['sessions'];
  shutdown(): Promise<void>;
}

/**
 * Resolves when the gateway listens.
 *
 * @param file the configuration file, if the gateway shall follow its changes and note the store's identity beside it
 */
export async function startGateway(
  config: Config,
  { env, logger = createLogger(config.log.level) }: { env: NodeJS.ProcessEnv; logger?: Logger },
  file?: string,
): Promise<ServedGateway> {
  let reload = () => {};
  // Without a listener, SIGHUP would end the process while requests execute.
  const onHangUp = () => reload();
  process.on('SIGHUP', onHangUp);
  const inherited = inheritedSocket(env);
  const endSpareThread = await prepareStore(config);
  // Half of the start is loading these, and the store's thread starts meanwhile.
  const { RunningGateway } = await import('../gateway/gateway.ts');
  const identityFile = file && identityFileOf(file, config);
  const tools = { clock: systemClock, logger, identityFile };
  const gateway = await RunningGateway.open(config, tools).finally(endSpareThread);
  try {
    // A pipe, such as `--config <(command)`, cannot be read again.
    const isFile = file !== undefined && statSync(file, { throwIfNoEntry: false })?.isFile();
    const configFile = isFile ? new ConfigFile(file, config, gateway, env) : undefined;
    gateway.readiness.configFile = configFile;
    const ports = await gateway.listen(inherited);
    reload = () => {
      void gateway.reloadKeys();
      void configFile?.reload();
    };
    const { emit, readiness, sessions } = gateway;
    for (const warning of await readiness.warnings()) emit('attention', { warning });
    const { mode } = config.idempotency;
    emit('listening', { ...ports, mode, ...thisBuild() });
    // Whoever waits for this line should not wait for the next regular flush too.
    logger.flush();
    const shutdown = async () => {
      configFile?.close();
      await gateway.shutdown();
      process.off('SIGHUP', onHangUp);
    };
    return { ...ports, emit, sessions, shutdown };
  } catch (error) {
    await gateway.shutdownNow();
    throw error;
  }
}

/**
 * The first SIGTERM or SIGINT starts a graceful shutdown, after the start if that has not ended. The second one ends the process at once.
 * Call it before the start has ended: a gateway serves before that, and without a listener a signal would cut what it executes. The exit
 * code is 0, or that of the error if the shutdown fails.
 *
 * @param afterwards called after the shutdown, before the process ends
 */
export function shutDownOnSignal(
  starting: Promise<ServedGateway>,
  afterwards: () => Promise<void> = async () => {},
): void {
  let isStopping = false;
  const onSignal = (signal: 'SIGTERM' | 'SIGINT') => {
    if (isStopping) process.exit(1);
    isStopping = true;
    const shutDown = async ({ emit, shutdown }: ServedGateway) => {
      emit('shutting_down', { signal });
      try {
        await shutdown();
        await afterwards();
      } catch (error) {
        const { message, code } = explainFailure(error);
        process.stderr.write(`oncegate: the shutdown failed: ${message}\n`);
        process.exitCode = code;
      }
      process.exit();
    };
    // A start that fails ends the process elsewhere.
    void starting.then(shutDown, () => {});
  };
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => onSignal(signal));
}
