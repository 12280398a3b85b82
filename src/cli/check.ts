import { mkdtemp, rm } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { loadConfig } from '../config/load.ts';
import { masked } from '../config/masked.ts';
import type { Config } from '../config/schema.ts';
import { Certificates, certificateSections } from '../gateway/certificates.ts';
import { RunningGateway } from '../gateway/gateway.ts';
import { listen } from '../gateway/http-server.ts';
import { findWarnings, linesOf } from '../gateway/readiness.ts';
import { FileKeySource } from '../keys/file-key-source.ts';
import { identityFileOf } from '../ledger/identity-file.ts';
import { DEFAULT_LAYERS } from '../ledger/record-id.ts';
import { systemClock } from '../lib/clock.ts';
import { createLogger } from '../telemetry/logger.ts';
import { Exit, explainFailure, FLAG, readArguments, required, TEXT, type Terminal } from './arguments.ts';
import { deliver } from './deliver.ts';
import { readBalance, SECRET_KEY, secretKeyOf } from './read-balance.ts';

const USAGE = `oncegate check --config FILE [--offline | [--secret-key-file FILE] [--deliver PATH]] [--json] [--strict]

Reads the configuration, opens its store and its keys, and connects to the backend. Warns of weak settings, of operations without
protection, of secret keys that have expired or will expire soon, of scopes without an operation, and of ports that are in use.

  --offline               checks only the configuration, the key file and the certificates
  --secret-key-file FILE  also reads the balance of the merchant who has the secret key in this file, with what the
                          backend gets from the gateway, and fails if the backend does not answer it. In place of the file, the
                          environment variable ONCEGATE_SECRET_KEY can have the secret key
  --deliver PATH          also sends POSTs to this path of the backend, which counts them, and fails if one arrives twice: a proxy that
                          repeats requests pays twice. The sandbox's path is /_sandbox/deliveries; docs/deploying.md says what yours must do
  --json                  prints one JSON document: ok, checks, warnings and mistakes
  --strict                exits with 1 also if there are warnings

Exit codes: 0 all checks passed (there may be warnings), 1 a check failed, 78 the configuration is wrong.
`;

const OPTIONS = {
  ...{ config: TEXT, offline: FLAG, deliver: TEXT, 'secret-key-file': TEXT, json: FLAG, strict: FLAG },
};

/** What was found. With `--json` it is printed with `ok`, and is a stable interface. */
interface Report {
  checks: { name: string; result: 'ok' | 'failed' | 'skipped'; detail: string }[];
  /** Each begins with the section or the part that it is about. */
  warnings: string[];
  /** Why there are no checks: mistakes in the files. */
  mistakes: string[];
}

export async function check(args: string[], terminal: Terminal): Promise<void> {
  const options = readArguments(args, OPTIONS, USAGE);
  const file = required(options.config, 'config', USAGE);
  const path = options.deliver;
  if (path !== undefined && (options.offline || !/^\/[\x21-\x7e]*$/.test(path) || /[?#]/.test(path)))
    throw new Exit(`--deliver needs a path without a query, and goes without --offline\n\n${USAGE}`, 64);
  if (options.offline && options['secret-key-file'] !== undefined)
    throw new Exit(`--secret-key-file goes without --offline\n\n${USAGE}`, 64);
  const secret = options.offline ? undefined : await secretKeyOf(options['secret-key-file'], terminal.env);
  let report: Report;
  let failure: Exit | undefined;
  let isLoaded = false;
  try {
    const config = loadConfig(file, terminal.env);
    isLoaded = true;
    report = await (options.offline ? checkFiles(config) : checkAll(config, identityFileOf(file, config)));
    if (secret !== undefined) report.checks.push(resultOf('balance', await readBalance(config, secret)));
    else if (!options.offline) report.checks.push({ name: 'balance', result: 'skipped', detail: NO_SECRET });
    if (path !== undefined) report.checks.push(resultOf('deliver', await deliver(config, path)));
    report.checks.push(...layerChecks(config));
    failure = failureOf(report, options.strict === true);
  } catch (error) {
    const { message, code } = explainFailure(error);
    failure = new Exit(message, isLoaded ? 1 : code);
    report = { checks: [], warnings: [], mistakes: message.split('\n') };
  }
  if (options.json) terminal.stdout.write(`${JSON.stringify({ ok: !failure, ...report }, null, 2)}\n`);
  else terminal.stdout.write(textOf(report));
  if (failure) throw failure;
}

function failureOf({ checks, warnings }: Report, strict: boolean): Exit | undefined {
  const failed = checks.filter(({ result }) => result === 'failed');
  if (failed.length > 0) return new Exit(`not ready: ${failed.map(({ name }) => name).join(', ')}`, 1);
  return strict && warnings.length > 0 ? new Exit(`warnings: ${warnings.length} (--strict)`, 1) : undefined;
}

/** A hint and no warning, because it holds for as long as the layer has that name. */
function layerChecks({ idempotency: { layer } }: Config): Report['checks'] {
  if (layer === DEFAULT_LAYERS.gateway) return [];
  const detail = `${layer}: a change of idempotency.layer makes every key new, so that its retry is paid again`;
  return [{ name: 'layer', result: 'ok', detail }];
}

const NO_SECRET = `not read: with --secret-key-file FILE or ${SECRET_KEY}, as a merchant would`;

const resultOf = (
  name: string,
  { ok, detail }: { ok: boolean; detail: string },
): Report['checks'][number] => ({
  ...{ name, result: ok ? 'ok' : 'failed', detail },
});

async function checkAll(config: Config, identityFile: string): Promise<Report> {
  const failure = await checkGateway(config, identityFile).catch((error: Error) => error);
  if (!(failure instanceof Error)) return failure;
  if (failure.name !== 'StoreUnavailable') throw failure;
  // Everything else is checked with an empty store.
  const path = await mkdtemp(join(tmpdir(), 'oncegate-check-')).catch(() => {
    throw failure;
  });
  try {
    const store = { kind: 'sqlite', path, timeoutMs: config.store.timeoutMs } as const;
    const report = await checkGateway({ ...config, store });
    const detail = `${failure.message} (${addressesOf(config).store})`;
    return { ...report, checks: [resultOf('store', { ok: false, detail }), ...report.checks.slice(1)] };
  } finally {
    await rm(path, { recursive: true, force: true });
  }
}

async function checkGateway(config: Config, identityFile?: string): Promise<Report> {
  const tools = { clock: systemClock, logger: createLogger('silent'), identityFile };
  const gateway = await RunningGateway.open(config, tools);
  const checks = (await gateway.readiness.checks()).filter(({ name }) => name !== 'draining');
  const warnings = [...(await gateway.readiness.checkWarnings()), ...(await portWarnings(config))];
  await gateway.shutdownNow();
  const addresses = addressesOf(config);
  const withAddress = ({ name, ok, detail }: (typeof checks)[number]) =>
    resultOf(name, { ok, detail: addresses[name] ? `${detail} (${addresses[name]})` : detail });
  return { checks: checks.map(withAddress), warnings, mistakes: [] };
}

/** Where the parts are, by the names of their checks. Without passwords. /readyz, which everyone may read, has no addresses. */
function addressesOf(config: Config): Record<string, string> {
  const { store, upstream } = masked(config) as Pick<Config, 'store' | 'upstream'>;
  const ofServer = (server: Exclude<Config['store'], { kind: 'sqlite' }>) =>
    server.url ??
    (server.kind === 'redis' ? (server.sentinels?.nodes ?? server.cluster ?? []).join(', ') : '');
  return { store: store.kind === 'sqlite' ? resolve(store.path) : ofServer(store), upstream: upstream.url };
}

async function checkFiles(config: Config): Promise<Report> {
  const { pepper, keys: source } = config.auth;
  const keys = source.source === 'file' ? await FileKeySource.open({ path: source.path, pepper }) : undefined;
  keys?.close();
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
    warnings: linesOf(await findWarnings(config, { keys, certificates }, systemClock.wallMs())),
    mistakes: [],
  };
}

const WORDS = { ok: 'ok', failed: 'FAIL', skipped: 'skip' };

function textOf({ checks, warnings }: Report): string {
  const lines = [
    ...checks.filter(({ result }) => result !== 'skipped').map(lineOf),
    ...warnings.map((warning) => `warn ${warning}`),
    ...checks.filter(({ result }) => result === 'skipped').map(lineOf),
  ];
  return lines.map((line) => `${line}\n`).join('');
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
      warnings.push(`${section}: port ${port} on ${host} ${why} (${section}.port)`);
    }
  }
  for (const server of servers) server.close();
  return warnings;
}
