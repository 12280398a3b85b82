import { readdirSync, readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import type { GatewayProcess } from './processes.ts';

const QUIET_WITHIN_MS = 20_000;
/** The gateway keeps idle connections to its backend for a second. */
const REST_MS = 2_000;

/** Figures of the gateway at one moment of the run. */
export interface Sample {
  atMs: number;
  rssBytes: number;
  /** Anonymous memory: without the pages of the store's file, which the kernel may reclaim at any time. */
  anonymousBytes: number;
  heapUsedBytes: number;
  eventLoopLagP99Ms: number;
  descriptors: number;
  inFlight: number;
  pendingWrites: number;
}

export class Sampler {
  readonly #gateway: GatewayProcess;

  constructor(gateway: GatewayProcess) {
    this.#gateway = gateway;
  }

  async take(atMs: number): Promise<Sample> {
    const { pid, adminUrl } = this.#gateway;
    const text = await (await fetch(`${adminUrl}/metrics`)).text();
    const read = (name: string) => Number(new RegExp(`^${name} (\\S+)$`, 'm').exec(text)?.[1] ?? Number.NaN);
    return {
      atMs: Math.round(atMs),
      rssBytes: statusBytes(pid, 'VmRSS'),
      anonymousBytes: statusBytes(pid, 'RssAnon'),
      heapUsedBytes: read('nodejs_heap_size_used_bytes'),
      eventLoopLagP99Ms: Math.round(read('nodejs_eventloop_lag_p99_seconds') * 10_000) / 10,
      descriptors: descriptorsOf(pid),
      inFlight: read('oncegate_in_flight'),
      pendingWrites: read('oncegate_pending_writes'),
    };
  }

  /** Whether all requests and writes finish in time. */
  async untilQuiet(): Promise<boolean> {
    const endMs = performance.now() + QUIET_WITHIN_MS;
    while (performance.now() < endMs) {
      const { inFlight, pendingWrites } = await this.take(0);
      if (inFlight === 0 && pendingWrites === 0) return true;
      await sleep(200);
    }
    return false;
  }
}

/**
 * Open file descriptors after unused connections have closed: the lowest count within the time, or the first count
 * that is not above `enough`.
 */
export async function restingDescriptors(pid: number, enough?: number): Promise<number> {
  const endMs = performance.now() + (enough === undefined ? REST_MS : QUIET_WITHIN_MS);
  let lowest = Number.POSITIVE_INFINITY;
  while (performance.now() < endMs && !(lowest <= (enough ?? -1))) {
    await sleep(REST_MS / 20);
    lowest = Math.min(lowest, descriptorsOf(pid));
  }
  return lowest;
}

const descriptorsOf = (pid: number): number => readdirSync(`/proc/${pid}/fd`).length;

function statusBytes(pid: number, name: string): number {
  const line = new RegExp(`^${name}:\\s+(\\d+) kB$`, 'm').exec(readFileSync(`/proc/${pid}/status`, 'utf8'));
  return Number(line?.[1] ?? Number.NaN) * 1024;
}
