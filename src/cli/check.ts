import { createServer, type Server } from 'node:http';
import { FileKeySource } from '../auth/file-key-source.ts';
import { loadConfig } from '../config/load.ts';
import type { Config } from '../config/schema.ts';
import { Gateway, startWarnings } from '../gateway/gateway.ts';
import { systemClock } from '../kernel/clock.ts';
import { createLogger } from '../observability/logger.ts';
import { Exit, explainFailure, readArguments, required } from './arguments.ts';
import { listen } from './serve.ts';

const USAGE = `oncegate check --config FILE [--offline]

Reads the configuration, opens its store and its keys, and connects to the backend. Warns of weak settings, of secret keys that
have expired or will expire soon, of scopes without an operation, and of ports that are in use.

  --offline    checks only the configuration and the key file

Exit codes: 0 all checks passed (there may be warnings), 1 a check failed, 78 the configuration is wrong.
`;

const OPTIONS = { config: { type: 'string' }, offline: { type: 'boolean' } } as const;

export async function check(args: string[]): Promise<void> {
  const options = readArguments(args, OPTIONS, USAGE);
  if (!options) return;
  const config = loadConfig(required(options.config, 'config', USAGE), process.env);
  await (options.offline ? checkFiles(config) : checkAll(config)).catch((error: unknown) => {
    throw new Exit(explainFailure(error).message, 1);
  });
}

async function checkAll(config: Config): Promise<void> {
  const gateway = await Gateway.open(config, { clock: systemClock, logger: createLogger('silent') });
  const checks = (await gateway.checks()).filter(({ name }) => name !== 'draining');
  const warnings = [...(await gateway.warnings()), ...(await portWarnings(config))];
  await gateway.shutdownNow();
  for (const { name, ok, detail } of checks) print(ok ? 'ok' : 'FAIL', `${name}: ${detail}`);
  for (const warning of warnings) print('warn', warning);
  const failed = checks.filter(({ ok }) => !ok);
  if (failed.length > 0) throw new Exit(`not ready: ${failed.map(({ name }) => name).join(', ')}`, 1);
}

async function checkFiles(config: Config): Promise<void> {
  const {
    pepper,
    keys: { path },
  } = config.auth;
  const keys = await FileKeySource.open({ path, pepper, clock: systemClock });
  keys.close();
  print('ok', `keys: ${keys.health().detail}`);
  for (const warning of await startWarnings(config, { keys }, systemClock.wallMs())) print('warn', warning);
  for (const skipped of ['store', 'upstream', 'ports']) print('skip', `${skipped}: not checked (--offline)`);
}

function print(result: 'ok' | 'FAIL' | 'warn' | 'skip', line: string): void {
  process.stdout.write(`${result.padEnd(4)} ${line}\n`);
}

/** Listens on each port for a moment. A port in use is only a warning, because the gateway itself may be running. */
async function portWarnings({ listen: merchants, admin }: Config): Promise<string[]> {
  const warnings: string[] = [];
  const servers: Server[] = [];
  for (const [section, { host, port }] of Object.entries({ listen: merchants, admin })) {
    const server = createServer();
    servers.push(server);
    try {
      await listen(server, host, port);
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      const why =
        code === 'EADDRINUSE'
          ? 'is in use, by a running gateway or another process'
          : `cannot be used: ${code}`;
      warnings.push(`${section}: port ${port} on ${host} ${why}`);
    }
  }
  for (const server of servers) server.close();
  return warnings;
}
