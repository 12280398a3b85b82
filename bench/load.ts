import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { CORES, cpuUs, rssBytes } from './processes.ts';
import { SECRET, type System } from './systems.ts';

export type Work = 'balance' | 'passthrough' | 'first' | 'replay' | 'mixed' | 'unkeyed';

const SCRIPT = fileURLToPath(new URL('./wrk/work.lua', import.meta.url));
const CONNECTIONS = 64;

const run = promisify(execFile);

/** What one run of wrk against one system has shown. */
export interface Run {
  requests: number;
  perSecond: number;
  /** Processor time of the system's own processes for each request, in microseconds. */
  cpuUs: number;
  /** Share of its core that the system used: below about 0.9 it was the load's core that set the pace. */
  busy: number;
  /** Answers that were no 2xx or 3xx, and broken connections. */
  wrong: number;
  rssBytes: number;
}

interface Told {
  requests: number;
  microseconds: number;
  badStatus: number;
  broken: number;
}

/** Keeps 64 connections busy for a while. `keys` begins every idempotency key. */
export async function load(system: System, work: Work, seconds: number, keys: string): Promise<Run> {
  const pid = system.process.pid as number;
  const before = cpuUs(pid);
  const { stdout } = await run(
    'taskset',
    ['-c', CORES.rest, 'wrk', '-t1', `-c${CONNECTIONS}`, `-d${seconds}s`, '-s', SCRIPT, system.url],
    { env: { ...process.env, WORK: work, KEYS: keys, SECRET } },
  );
  const usedUs = cpuUs(pid) - before;
  const told: Told = JSON.parse(stdout.trim().split('\n').at(-1) ?? '');
  return {
    requests: told.requests,
    perSecond: Math.round((told.requests * 1_000_000) / told.microseconds),
    cpuUs: Math.round((usedUs / told.requests) * 10) / 10,
    busy: Math.round((usedUs / told.microseconds) * 100) / 100,
    wrong: told.badStatus + told.broken,
    rssBytes: rssBytes(pid),
  };
}

const WARM_UP_S = 2;

/** Until most of it is compiled, which each process does for itself; afterwards the keys that are replayed are there. */
export async function warmUp(system: System, work: Work, keys: string): Promise<void> {
  // Of n processes on one core each gets the n-th part of the time, and of the requests that tell what is worth compiling.
  await load(system, work, WARM_UP_S * system.processes ** 2, keys);
}
