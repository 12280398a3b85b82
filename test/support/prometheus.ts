import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { stringify } from 'yaml';
import { temporaryFolder } from './config.ts';
import { freePort } from './free-port.ts';
import { track } from './spawn.ts';

/** Where scripts/setup.mjs puts them if the machine has none. */
const CARRIED = fileURLToPath(new URL('../../node_modules/.tools/', import.meta.url));
const pathOf = (name: string) => (existsSync(join(CARRIED, name)) ? join(CARRIED, name) : name);

/** Runs Prometheus' own checker. Returns its complaints, or an empty text. */
export function promtool(...args: string[]): string {
  const { status, stdout, stderr, error } = spawnSync(pathOf('promtool'), args, { encoding: 'utf8' });
  if (error) throw error;
  return status === 0 ? '' : `${stdout}${stderr}` || `promtool ended with ${status}`;
}

const START_TRIES = 5;

export interface PrometheusOptions {
  /** What is scraped, as job `oncegate`: `127.0.0.1:8081`. */
  targets: string[];
  /** Texts of rule files. Default: none. */
  rules?: string[];
  /** How often targets are scraped and rules are evaluated. Default 200. */
  everyMs?: number;
  /** Accept exemplars. Default false. */
  exemplars?: boolean;
}

/** One series of an instant query. */
export interface Sample {
  labels: Record<string, string>;
  /** `NaN` and `+Inf` are possible. */
  value: number;
}

/** A real Prometheus. */
export interface Prometheus {
  url: string;
  /** An instant query. @throws with Prometheus' words if it refuses the query */
  query(expr: string): Promise<Sample[]>;
  stop(): Promise<void>;
}

/** Starts Prometheus on a free port with its own folder. It is stopped after the test file. Resolves when it is ready. */
export async function startPrometheus(options: PrometheusOptions): Promise<Prometheus> {
  const folder = temporaryFolder();
  for (let tries = 0; tries < START_TRIES; tries++) {
    const started = await start(join(folder, `${tries}`), await freePort(), options);
    if (started) return started;
  }
  throw new Error(`Prometheus found no free port in ${START_TRIES} tries`);
}

/** Undefined: another process has the port. */
async function start(
  folder: string,
  port: number,
  { targets, rules = [], everyMs = 200, exemplars = false }: PrometheusOptions,
): Promise<Prometheus | undefined> {
  mkdirSync(folder);
  for (const [i, text] of rules.entries()) writeFileSync(join(folder, `${i}.rules.yaml`), text);
  const every = `${everyMs}ms`;
  const config = {
    global: { scrape_interval: every, scrape_timeout: every, evaluation_interval: every },
    rule_files: rules.map((_text, i) => `${i}.rules.yaml`),
    scrape_configs: [{ job_name: 'oncegate', static_configs: [{ targets }] }],
  };
  const file = join(folder, 'prometheus.yaml');
  writeFileSync(file, stringify(config));
  const child = track(
    spawn(
      pathOf('prometheus'),
      [
        ...[`--config.file=${file}`, `--storage.tsdb.path=${join(folder, 'data')}`],
        `--web.listen-address=127.0.0.1:${port}`,
        ...(exemplars ? ['--enable-feature=exemplar-storage'] : []),
      ],
      { stdio: ['ignore', 'ignore', 'pipe'] },
    ),
  );
  const log: string[] = [];
  const errors = child.stderr as NodeJS.ReadableStream;
  for await (const line of createInterface({ input: errors })) {
    log.push(line);
    if (line.includes('address already in use')) return undefined;
    if (line.includes('Server is ready to receive web requests')) break;
  }
  // The loop above has closed the stream if it ended with `break`; the process must not block on a full pipe.
  errors.resume();
  if (child.exitCode !== null) throw new Error(`Prometheus ended:\n${log.join('\n')}`);
  const url = `http://127.0.0.1:${port}`;

  async function api<T>(path: string, parameters: Record<string, string> = {}): Promise<T> {
    const response = await fetch(`${url}/api/v1/${path}?${new URLSearchParams(parameters)}`);
    const { status, data, error } = (await response.json()) as { status: string; data: T; error?: string };
    if (status !== 'success') throw new Error(`${parameters.query ?? path}: ${error}`);
    return data;
  }

  return {
    url,
    async query(expr) {
      type Answer = {
        resultType: string;
        result: { metric: Record<string, string>; value: [number, string] }[];
      };
      const { result } = await api<Answer>('query', { query: expr });
      return result.map(({ metric, value }) => ({ labels: metric, value: numberOf(value[1]) }));
    },
    async stop() {
      if (child.exitCode !== null || child.signalCode !== null) return;
      const exited = once(child, 'exit');
      child.kill('SIGKILL');
      await exited;
    },
  };
}

const numberOf = (text: string): number => Number(text.replace('Inf', 'Infinity'));
