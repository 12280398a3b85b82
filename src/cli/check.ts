import { createServer, type Server } from 'node:http';
import { loadConfig } from '../config/load.ts';
import type { Config } from '../config/schema.ts';
import { Certificates, certificateSections } from '../gateway/certificates.ts';
import { Gateway } from '../gateway/gateway.ts';
import { listen } from '../gateway/http-server.ts';
import { findWarnings, linesOf } from '../gateway/readiness.ts';
import { FileKeySource } from '../keys/file-key-source.ts';
import { identityFileOf } from '../ledger/identity-file.ts';
import { DEFAULT_LAYERS } from '../ledger/record-id.ts';
import { systemClock } from '../lib/clock.ts';
import { createLogger } from '../telemetry/logger.ts';
import { Exit, explainFailure, FLAG, readArguments, required, TEXT, type Terminal } from './arguments.ts';
import { deliver } from './deliver.ts';

const USAGE = `oncegate check --config FILE [--offline | --deliver PATH] [--json] [--strict]

Reads the configuration, opens its store and its keys, and connects to the backend. Warns of weak settings, of operations without
protection, of secret keys that have expired or will expire soon, of scopes without an operation, and of ports that are in use.

  --offline       checks only the configuration, the key file and the certificates
  --deliver PATH  also sends POSTs to this path of the backend, which counts them, and fails if one arrives twice: a proxy that repeats
                  requests pays twice. The sandbox's path is /_sandbox/deliveries; docs/deploying.md says what yours must do
  --json          prints one JSON document: ok, checks, warnings and mistakes
  --strict        exits with 1 also if there are warnings

Exit codes: 0 all checks passed (there may be warnings), 1 a check failed, 78 the configuration is wrong.
`;

const OPTIONS = { config: TEXT, offline: FLAG, deliver: TEXT, json: FLAG, strict: FLAG };

/** What was found. With `--json` it is printed with `ok`, and is a stable interface. */
interface Report {
  checks: { name: string; result: 'ok' | 'failed' | 'skipped'; detail: string }[];
  /** Each begins with the section or the part that it is about. */
  warnings: string[];
  /** Why there are no checks: mistakes in the files, or a store that cannot be opened. */
  mistakes: string[];
}

export async function check(args: string[], terminal: Terminal): Promise<void> {
  const options = readArguments(args, OPTIONS, USAGE);
  const file = required(options.config, 'config', USAGE);
  const path = options.deliver;
  if (path !== undefined && (options.offline || !/^\/[\x21-\x7e]*$/.test(path) || /[?#]/.test(path)))
    throw new Exit(`--deliver needs a path without a query, and goes without --offline\n\n${USAGE}`, 64);
  let report: Report;
  let failure: Exit | undefined;
  let isLoaded = false;
  try {
    const config = loadConfig(file, terminal.env);
    isLoaded = true;
    report = await (options.offline ? checkFiles(config) : checkAll(config, identityFileOf(file, config)));
    if (path !== undefined) {
      const { ok, detail } = await deliver(config, path);
      report.checks.push({ name: 'deliver', result: ok ? 'ok' : 'failed', detail });
    }
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

async function checkAll(config: Config, identityFile: string): Promise<Report> {
  const tools = { clock: systemClock, logger: createLogger('silent'), identityFile };
  const gateway = await Gateway.open(config, tools);
  const checks = (await gateway.readiness.checks()).filter(({ name }) => name !== 'draining');
  const warnings = [...(await gateway.readiness.checkWarnings()), ...(await portWarnings(config))];
  await gateway.shutdownNow();
  return {
    checks: checks.map(({ name, ok, detail }) => ({ name, result: ok ? 'ok' : 'failed', detail })),
    warnings,
    mistakes: [],
  };
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
