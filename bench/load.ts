import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { CORES, cpuUs, rssBytes } from './processes.ts';
import { SECRET, type System } from './systems.ts';

export type Work = 'balance' | 'passthrough' | 'first' | 'replay' | 'mixed' | 'unkeyed' | 'upload';

const SCRIPT = fileURLToPath(new URL('./wrk/work.lua', import.meta.url));
const CONNECTIONS = 64;

const run = promisify(execFile);

/** The results of one run of wrk against one system. */
export interface Run {
  requests: number;
  perSecond: number;
  /** Processor time of the system's own processes for each request, in microseconds. */
  cpuUs: number;
  /** Share of its core that the system used. Below about 0.9 the core of the load generator was the limit. */
  busy: number;
  /** Answers other than 2xx and 3xx, and broken connections; the benchmark adds wrong executions. */
  wrong: number;
  rssBytes: number;
}

interface WrkSummary {
  requests: number;
  microseconds: number;
  badStatus: number;
  broken: number;
}

/** Keeps 64 connections busy for a while. Every idempotency key starts with `keys`. */
export async function load(system: System, work: Work, seconds: number, keys: string): Promise<Run> {
  const pid = system.process.pid as number;
  const before = cpuUs(pid);
  const { stdout } = await run(
    'taskset',
    ['-c', CORES.rest, 'wrk', '-t1', `-c${CONNECTIONS}`, `-d${seconds}s`, '-s', SCRIPT, system.url],
    { env: { ...process.env, WORK: work, KEYS: keys, SECRET } },
  );
  const usedUs = cpuUs(pid) - before;
  const summary: WrkSummary = JSON.parse(stdout.trim().split('\n').at(-1) ?? '');
  return {
    requests: summary.requests,
    perSecond: Math.round((summary.requests * 1_000_000) / summary.microseconds),
    cpuUs: Math.round((usedUs / summary.requests) * 10) / 10,
    busy: Math.round((usedUs / summary.microseconds) * 100) / 100,
    wrong: summary.badStatus + summary.broken,
    rssBytes: rssBytes(pid),
  };
}

export const WARM_UP_S = 2;
const MOST_WARM_UPS = 12;
/** V8 has compiled what it will if so many loads in a row bring less than this. */
const [STEADY, GAIN] = [2, 0.03];

/**
 * Warms a system up until its processor time for each request falls no more: after a single load, a busy gateway takes twice as much as
 * later. It also creates the keys that are replayed.
 */
export async function warmUp(system: System, work: Work, keys: string): Promise<void> {
  let leastUs = Number.POSITIVE_INFINITY;
  for (let each = 0, steady = 0; each < MOST_WARM_UPS && steady < STEADY; each++) {
    const { cpuUs } = await load(system, work, WARM_UP_S, work === 'replay' ? keys : `${keys}-${each}`);
    steady = cpuUs > leastUs * (1 - GAIN) ? steady + 1 : 0;
    leastUs = Math.min(leastUs, cpuUs);
  }
}
