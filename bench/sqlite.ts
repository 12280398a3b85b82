/**
 * What the SQLite store costs without gateway and backend: `node bench/sqlite.ts`. Processes that share one file make
 * payouts of two durable writes each. Prints a Markdown table. It takes a minute and needs an otherwise idle machine.
 */
import { type ChildProcessByStdio, spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Readable, Writable } from 'node:stream';
import { json } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { fingerprintOf, newToken, scopeOf } from '../src/idempotency/fingerprint.ts';
import type { Execution } from '../src/idempotency/store.ts';
import { SqliteStore } from '../src/idempotency/stores/sqlite/sqlite-store.ts';
import { systemClock } from '../src/kernel/clock.ts';
import type { Completion } from '../src/kernel/exchange.ts';

const SECONDS = 5;
const DAY_MS = 86_400_000;
const LIFETIMES = { leaseMs: 10_000, retentionMs: DAY_MS, inDoubtRetentionMs: 30 * DAY_MS };
const HEADERS = ['Content-Type', 'application/json; charset=utf-8', 'Date', 'Sun, 22 Nov 2026 15:47:07 GMT'];
const BODY = Buffer.from(
  JSON.stringify({ success: true, data: { id: randomUUID(), note: 'x'.repeat(250) } }),
);
const COMPLETION: Completion = {
  kind: 'response',
  response: { status: 201, headers: [...HEADERS, 'X-Request-Id', randomUUID()], body: BODY },
};

interface Run {
  payouts: number;
  cpuUs: number;
  /** Each write: when it finished (Unix milliseconds), and how long it took. */
  writes: [endedMs: number, tookMs: number][];
}

function newExecution(): Execution {
  const key = randomUUID();
  return {
    scope: scopeOf('M-1', key),
    token: newToken(),
    fingerprint: fingerprintOf('POST', '/v1/index.php', BODY),
    merchant: 'M-1',
    operation: 'withdraw',
    key,
    requestId: randomUUID(),
  };
}

/** One process. It makes payouts on a number of lanes for some seconds after the first byte on standard input. */
async function work(path: string, lanes: number): Promise<void> {
  const options = { path, timeoutMs: 60_000, clock: systemClock, gatewayId: 'bench', lifetimes: LIFETIMES };
  const store = await SqliteStore.open(options);
  process.stderr.write('ready\n');
  await once(process.stdin, 'data');
  const writes: Run['writes'] = [];
  const timed = async (write: Promise<unknown>) => {
    const startedMs = performance.now();
    await write;
    writes.push([performance.timeOrigin + performance.now(), performance.now() - startedMs]);
  };
  let payouts = 0;
  const [cpuBefore, endMs] = [process.cpuUsage(), performance.now() + SECONDS * 1000];
  await Promise.all(
    Array.from({ length: lanes }, async () => {
      for (; performance.now() < endMs; payouts++) {
        const execution = newExecution();
        await timed(store.start(execution));
        await timed(store.complete(execution, COMPLETION));
      }
    }),
  );
  const { user, system } = process.cpuUsage(cpuBefore);
  await store.close();
  const run: Run = { payouts, cpuUs: user + system, writes };
  process.stdin.destroy();
  process.stdout.write(JSON.stringify(run));
}

const SELF = fileURLToPath(import.meta.url);

function startProcess(path: string, lanes: number): ChildProcessByStdio<Writable, Readable, Readable> {
  return spawn(process.execPath, [SELF, path, `${lanes}`], { stdio: ['pipe', 'pipe', 'pipe'] });
}

/** When checkpoints wrote to the database file, according to its modification time. */
function watchCheckpoints(path: string): { stop(): number[] } {
  const [file, timesMs] = [join(path, 'records.db'), [] as number[]];
  const timer = setInterval(() => {
    const { mtimeMs } = statSync(file);
    if (mtimeMs !== timesMs.at(-1)) timesMs.push(mtimeMs);
  }, 2);
  return {
    stop() {
      clearInterval(timer);
      return timesMs.slice(1);
    },
  };
}

async function measure(processes: number, lanes: number): Promise<string> {
  const path = mkdtempSync(join(tmpdir(), 'bench-sqlite-'));
  try {
    const children = Array.from({ length: processes }, () => startProcess(path, lanes));
    await Promise.all(children.map(({ stderr }) => once(stderr, 'data')));
    const checkpoints = watchCheckpoints(path);
    for (const { stdin } of children) stdin.write('go');
    const runs = (await Promise.all(children.map(({ stdout }) => json(stdout)))) as Run[];
    const timesMs = checkpoints.stop();
    return row(processes, lanes, runs, timesMs);
  } finally {
    rmSync(path, { recursive: true, force: true });
  }
}

function row(processes: number, lanes: number, runs: Run[], checkpointsMs: number[]): string {
  const payouts = runs.reduce((sum, run) => sum + run.payouts, 0);
  const cpuUs = runs.reduce((sum, run) => sum + run.cpuUs, 0);
  const writes = runs.flatMap((run) => run.writes);
  const all = writes.map(([, tookMs]) => tookMs).toSorted((a, b) => a - b);
  let next = 0;
  const during = writes
    .toSorted(([a], [b]) => a - b)
    .filter(([endedMs, tookMs]) => {
      while ((checkpointsMs[next] ?? Number.POSITIVE_INFINITY) < endedMs - tookMs) next++;
      return (checkpointsMs[next] ?? Number.POSITIVE_INFINITY) <= endedMs;
    })
    .map(([, tookMs]) => tookMs)
    .toSorted((a, b) => a - b);
  const cells = [
    processes,
    lanes,
    Math.round(payouts / SECONDS),
    (cpuUs / payouts).toFixed(0),
    ...[0.5, 0.99, 1].map((share) => quantile(all, share)),
    quantile(during, 0.99),
  ];
  return `| ${cells.join(' | ')} |`;
}

const quantile = (sorted: number[], share: number): string =>
  (sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN).toFixed(1);

const [path, lanes] = process.argv.slice(2);
if (path !== undefined && lanes !== undefined) await work(path, Number(lanes));
else {
  const table = [
    '| processes | payouts at once in each | payouts/s | CPU µs per payout | p50 ms | p99 ms | max ms | p99 ms during checkpoints |',
    '|---|---|---|---|---|---|---|---|',
  ];
  process.stdout.write(`${table.join('\n')}\n`);
  const loads = [
    [1, 1],
    [1, 64],
    [1, 16],
    [2, 16],
    [4, 16],
    [8, 16],
  ] as const;
  for (const [processes, each] of loads) process.stdout.write(`${await measure(processes, each)}\n`);
}
