import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect } from 'vitest';
import { stringify } from 'yaml';
import { temporaryFolder } from './config.ts';
import { freePort } from './free-port.ts';
import { type Begun, begin } from './tour.ts';
import { until } from './until.ts';

/** Where scripts/setup.mjs puts them if the machine has none. */
const CARRIED = fileURLToPath(new URL('../../node_modules/.tools/', import.meta.url));
const pathOf = (name: string) => (existsSync(join(CARRIED, name)) ? join(CARRIED, name) : name);

/** Runs Prometheus' own checker. Returns its complaints, or an empty text. */
export function promtool(...args: string[]): string {
  const { status, stdout, stderr, error } = spawnSync(pathOf('promtool'), args, { encoding: 'utf8' });
  if (error) throw error;
  return status === 0 ? '' : `${stdout}${stderr}` || `promtool ended with ${status}`;
}

/** Runs Alertmanager's own checker. Returns what it prints. @throws with its complaints */
export const amtool = (...args: string[]): string =>
  execFileSync(pathOf('amtool'), args, { encoding: 'utf8' });

/** One series of an instant query. */
export interface Sample {
  labels: Record<string, string>;
  /** `NaN` and `+Inf` are possible. */
  value: number;
}

/** A real Prometheus. */
export interface Prometheus extends Pick<Begun, 'end'> {
  url: string;
  /** An instant query. @throws with Prometheus' words if it refuses the query */
  query(expr: string): Promise<Sample[]>;
}

/**
 * Starts Prometheus, which scrapes and evaluates every second, on a free port and in a folder of its own.
 *
 * @param targets what is scraped, as job `oncegate`: `127.0.0.1:8081`
 * @param rules the text of a rule file
 */
export async function startPrometheus(targets: string[], rules: string): Promise<Prometheus> {
  const folder = temporaryFolder();
  writeFileSync(join(folder, 'rules.yaml'), rules);
  const config = {
    global: { scrape_interval: '1s', scrape_timeout: '1s', evaluation_interval: '1s' },
    rule_files: ['rules.yaml'],
    scrape_configs: [{ job_name: 'oncegate', static_configs: [{ targets }] }],
  };
  const file = join(folder, 'prometheus.yaml');
  writeFileSync(file, stringify(config));
  return await runPrometheus(file, await freePort());
}

/** Runs Prometheus with this configuration. It is stopped after the test file. Resolves when it is ready. */
export async function runPrometheus(file: string, port: number): Promise<Prometheus> {
  const args = [`--config.file=${file}`, `--storage.tsdb.path=${file}.data`];
  const program = [pathOf('prometheus'), ...args, `--web.listen-address=127.0.0.1:${port}`];
  const { output, end } = begin([], { program });
  const url = `http://127.0.0.1:${port}`;
  const isReady = async () => (await fetch(`${url}/-/ready`).catch(() => undefined))?.ok;
  await until(isReady).catch(() => expect.fail(output()));
  return {
    url,
    end,
    async query(expr) {
      const response = await fetch(`${url}/api/v1/query?${new URLSearchParams({ query: expr })}`);
      const { status, data, error } = (await response.json()) as QueryAnswer;
      if (status !== 'success') throw new Error(`${expr}: ${error}`);
      return data.result.map(({ metric, value }) => ({ labels: metric, value: numberOf(value[1]) }));
    },
  };
}

interface QueryAnswer {
  status: string;
  data: { result: { metric: Record<string, string>; value: [number, string] }[] };
  error?: string;
}

const numberOf = (text: string): number => Number(text.replace('Inf', 'Infinity'));
