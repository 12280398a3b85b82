import { readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { afterAll } from 'vitest';
import { createSandbox, type Sandbox } from '../../../src/sandbox/sandbox.ts';
import { send, type TestAnswer } from '../../support/client.ts';
import { FAST_START, newFolder } from '../../support/command.ts';
import { type ConfigInput, type MoreConfig, testConfig } from '../../support/config.ts';
import { isAlive, killAfterTests } from '../../support/process-life.ts';
import { type SpawnedGateway, spawnGateway } from '../../support/spawn.ts';
import { until } from '../../support/until.ts';

const closing: (() => unknown)[] = [];
afterAll(() => Promise.all(closing.splice(0).map((close) => close())));

/** A sandbox in this process, closed after the test file. */
export async function openSandbox(): Promise<Sandbox> {
  const sandbox = await createSandbox({ port: 0 });
  closing.push(() => sandbox.close());
  return sandbox;
}

export const configFor = (sandbox: Sandbox, more: MoreConfig = {}): ConfigInput =>
  testConfig(newFolder(), sandbox.url, more);

/** A gateway process that is killed after the test file if it still runs. */
export async function startGateway(config: ConfigInput, env?: NodeJS.ProcessEnv): Promise<SpawnedGateway> {
  const gateway = await spawnGateway(config, { ...FAST_START, ...env }, newFolder());
  killAfterTests(gateway.pid);
  return gateway;
}

/** Pids in the gateway's access log, in order of appearance; each is killed after the test file. */
export function pidsOf({ lines }: SpawnedGateway): number[] {
  const pids = lines.map((line) => JSON.parse(line)).filter(({ msg }) => msg === 'request');
  return [...new Set(pids.map(({ pid }) => killAfterTests(pid as number)))];
}

/** Its processes, including those that are still starting; each is killed after the test file. */
export function childrenOf(pid: number): number[] {
  const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').split(' ').filter(Boolean);
  return children.map((child) => killAfterTests(Number(child))).filter(isAlive);
}

/** Sends requests until `count` workers have answered, and returns their pids. */
export async function workersOf(gateway: SpawnedGateway, count: number): Promise<number[]> {
  const from = gateway.lines.length;
  const pids = () => pidsOf({ ...gateway, lines: gateway.lines.slice(from) });
  return await until(async () => {
    await send(gateway.url);
    return pids().length === count ? pids() : undefined;
  });
}

const PATIENCE_MS = 10_000;

/** How a new connection with one request on it ended, and how long that took. */
export function visit(port: number): Promise<{ how: string; elapsedMs: number }> {
  const startedMs = performance.now();
  return new Promise((resolve) => {
    let how = 'no answer';
    const socket = connect(port, '127.0.0.1');
    socket.once('connect', () =>
      socket.write('GET / HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n'),
    );
    socket.once('data', () => {
      how = 'an answer';
    });
    socket.setTimeout(PATIENCE_MS, () => {
      how = 'left hanging';
      socket.destroy();
    });
    socket.once('error', ({ code = '' }: NodeJS.ErrnoException) => {
      how = code;
    });
    socket.once('close', () => resolve({ how, elapsedMs: performance.now() - startedMs }));
  });
}

export const isReplay = ({ headers }: TestAnswer): boolean => headers['idempotent-replayed'] === 'true';
export const codeOf = (answer: TestAnswer): unknown =>
  answer.json<{ error?: { code?: string } }>().error?.code;

/** Every series that can only grow, with its value: counters, and the counts, sums and buckets of histograms. */
export async function countersOf({ adminUrl }: SpawnedGateway): Promise<Map<string, number>> {
  const { status, body } = await send(adminUrl, { path: '/metrics' });
  if (status !== 200) throw new Error(`/metrics answered ${status}`);
  const series = new Map<string, number>();
  let grows = false;
  for (const line of body.toString().split('\n')) {
    if (line.startsWith('# TYPE ')) grows = !line.endsWith(' gauge');
    const at = line.lastIndexOf(' ');
    if (grows && line !== '' && !line.startsWith('#'))
      series.set(line.slice(0, at), Number(line.slice(at + 1)));
  }
  return series;
}
