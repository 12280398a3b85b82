import { createServer, type Server } from 'node:http';
import { loadConfig } from '../config/load.ts';
import type { Config } from '../config/schema.ts';
import { Certificates, certificateSections } from '../gateway/certificates.ts';
import { Gateway, startWarnings } from '../gateway/gateway.ts';
import { listen } from '../gateway/http-server.ts';
import { openKeySource } from '../gateway/key-sources.ts';
import { markFileOf } from '../gateway/store-watch.ts';
import { systemClock } from '../kernel/clock.ts';
import { createLogger } from '../observability/logger.ts';
import { Exit, explainFailure, readArguments, required } from './arguments.ts';
import { refusedUpgrade, type Upgrade, upgradeOf } from './upgrade.ts';

const USAGE = `oncegate check --config FILE [--offline] [--json] [--strict]

Reads the configuration, opens its store and its keys, and connects to the backend. Warns of weak settings, of operations without
protection, of secret keys that have expired or will expire soon, of scopes without an operation, and of ports that are in use.
Says what is to be done if another version used the store before, and the new names of options of earlier versions.

  --offline    checks only the configuration, the key file and the certificates
  --json       prints one JSON document: ok, checks, warnings, mistakes and upgrade
  --strict     exits with 1 also if there are warnings

Exit codes: 0 all checks passed (there may be warnings), 1 a check failed, 78 the configuration is wrong.
`;

const OPTIONS = {
  config: { type: 'string' },
  offline: { type: 'boolean' },
  json: { type: 'boolean' },
  strict: { type: 'boolean' },
} as const;

/** What was found. With `--json` it is printed with `ok`, and is a stable interface. */
interface Report {
  checks: { name: string; result: 'ok' | 'failed' | 'skipped'; detail: string }[];
  /** Each begins with the section or the part that it is about. */
  warnings: string[];
  /** Why there are no checks: mistakes in the files, or a store that cannot be opened. */
  mistakes: string[];
  upgrade: Upgrade;
}

export async function check(args: string[]): Promise<void> {
  const options = readArguments(args, OPTIONS, USAGE);
  if (!options) return;
  const file = required(options.config, 'config', USAGE);
  let report: Report;
  let failure: Exit | undefined;
  let isLoaded = false;
  try {
    const config = loadConfig(file, process.env);
    isLoaded = true;
    report = await (options.offline ? checkFiles(config) : checkAll(config, markFileOf(file, config)));
    failure = failureOf(report, options.strict === true);
  } catch (error) {
    const { message, code } = explainFailure(error);
    failure = new Exit(message, isLoaded ? 1 : code);
    const upgrade = refusedUpgrade(error);
    report = { checks: [], warnings: [], mistakes: message.split('\n'), upgrade };
  }
  if (options.json) process.stdout.write(`${JSON.stringify({ ok: !failure, ...report }, null, 2)}\n`);
  else print(report);
  if (failure) throw failure;
}

function failureOf({ checks, warnings }: Report, strict: boolean): Exit | undefined {
  const failed = checks.filter(({ result }) => result === 'failed');
  if (failed.length > 0) return new Exit(`not ready: ${failed.map(({ name }) => name).join(', ')}`, 1);
  return strict && warnings.length > 0 ? new Exit(`warnings: ${warnings.length} (--strict)`, 1) : undefined;
}

async function checkAll(config: Config, markFile: string): Promise<Report> {
  const tools = { clock: systemClock, logger: createLogger('silent'), markFile };
  const gateway = await Gateway.open(config, tools);
  const checks = (await gateway.checks()).filter(({ name }) => name !== 'draining');
  const warnings = [...(await gateway.checkWarnings()), ...(await portWarnings(config))];
  await gateway.shutdownNow();
  const upgrade = upgradeOf(config, gateway.markAtStart);
  if (upgrade.store?.needsAttention) warnings.push(`store: ${upgrade.store.detail}`);
  return {
    checks: checks.map(({ name, ok, detail }) => ({ name, result: ok ? 'ok' : 'failed', detail })),
    warnings,
    mistakes: [],
    upgrade,
  };
}

async function checkFiles(config: Config): Promise<Report> {
  const { pepper, keys: source } = config.auth;
  const keys =
    source.source === 'file'
      ? await openKeySource({ keys: source, pepper }, { clock: systemClock })
      : undefined;
  await keys?.close();
  const certificates = new Certificates({ clock: systemClock });
  for (const [name, paths] of certificateSections(config)) await certificates.open(name, paths);
  certificates.close();
  const skipped = [...(keys ? [] : ['keys']), 'store', 'upstream', 'ports'].map((name) => ({
    name,
    result: 'skipped' as const,
    detail: 'not checked (--offline)',
  }));
  const loaded = { name: 'certificates', result: 'ok' as const, detail: 'loaded' };
  return {
    checks: [
      ...(keys ? [{ name: 'keys', result: 'ok' as const, detail: keys.health().detail }] : []),
      ...(certificates.count > 0 ? [loaded] : []),
      ...skipped,
    ],
    warnings: await startWarnings(config, { ...(keys && { keys }), certificates }, systemClock.wallMs()),
    mistakes: [],
    upgrade: upgradeOf(config),
  };
}

const WORDS = { ok: 'ok', failed: 'FAIL', skipped: 'skip' };

function print({ checks, warnings, upgrade: { version, store } }: Report): void {
  const isToldElsewhere = store?.change !== 'none' || store.needsAttention || store.lastUsedBy === version;
  const lines = [
    ...checks.filter(({ result }) => result !== 'skipped').map(lineOf),
    ...(isToldElsewhere ? [] : [`note store: ${store.detail}`]),
    ...warnings.map((warning) => `warn ${warning}`),
    ...checks.filter(({ result }) => result === 'skipped').map(lineOf),
  ];
  for (const line of lines) process.stdout.write(`${line}\n`);
}

const lineOf = ({ name, result, detail }: Report['checks'][number]): string =>
  `${WORDS[result].padEnd(4)} ${name}: ${detail}`;

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
