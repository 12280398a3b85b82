import { readdirSync, readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import type { GatewayProcess } from './gateways.ts';
import { ADMIN_TOKEN } from './operators.ts';

const EVERY_MS = 2000;
const MIB = 1024 * 1024;

type Figure = 'heapUsedBytes' | 'anonymousBytes' | 'descriptors';

/** What a gateway holds at one moment of a run without faults. Memory is without the pages of files, which the kernel may reclaim. */
export type Sample = { atMs: number; gateway: number } & Record<Figure, number>;

/**
 * How a figure is judged. Just after a garbage collection only live objects remain, and an idle moment has no connections of
 * bursts: there the lowest value counts. `warmAfterMs`: how late the second quarter must begin, because V8 and the allocator
 * keep what they took from the system for the first minutes. `noise`: how much it may grow whatever its size; of all memory,
 * the two semi-spaces of 16 MiB, which V8 takes and gives back.
 */
const FIGURES: Record<Figure, { of(values: readonly number[]): number; warmAfterMs: number; noise: number }> =
  {
    heapUsedBytes: { of: lowest, warmAfterMs: 15_000, noise: 8 * MIB },
    anonymousBytes: { of: median, warmAfterMs: 120_000, noise: 32 * MIB },
    descriptors: { of: lowest, warmAfterMs: 15_000, noise: 10 },
  };
const MAX_GROWTH = 1.1;

/** A figure of a gateway in the second quarter of the run and in the last one. */
export interface Growth {
  gateway: number;
  figure: Figure;
  second: number;
  last: number;
  /** `short`: the run is all warm-up. */
  verdict: 'flat' | 'grew' | 'short';
}

/** Takes samples of each gateway until the signal. @throws if a gateway does not answer */
export async function takeSamples(
  gateways: readonly GatewayProcess[],
  until: AbortSignal,
): Promise<Sample[]> {
  const samples: Sample[] = [];
  const startedMs = performance.now();
  while (!until.aborted) {
    await sleep(EVERY_MS, undefined, { signal: until }).catch(() => {});
    const atMs = Math.round(performance.now() - startedMs);
    samples.push(...(await Promise.all(gateways.map((gateway) => sampleOf(gateway, atMs)))));
  }
  return samples;
}

async function sampleOf({ number, pid, adminPort }: GatewayProcess, atMs: number): Promise<Sample> {
  const headers = { authorization: `Bearer ${ADMIN_TOKEN}` };
  const metrics = await (await fetch(`http://127.0.0.1:${adminPort}/metrics`, { headers })).text();
  const status = readFileSync(`/proc/${pid}/status`, 'utf8');
  const read = (text: string, figure: RegExp) => Number(figure.exec(text)?.[1] ?? Number.NaN);
  return {
    ...{ atMs, gateway: number },
    heapUsedBytes: read(metrics, /^nodejs_heap_size_used_bytes (\S+)$/m),
    anonymousBytes: read(status, /^RssAnon:\s+(\d+) kB$/m) * 1024,
    descriptors: readdirSync(`/proc/${pid}/fd`).length,
  };
}

/** Each figure of each gateway. One that cannot be read has grown. */
export function growthOf(samples: readonly Sample[]): Growth[] {
  return [...Map.groupBy(samples, ({ gateway }) => gateway)].flatMap(([gateway, own]) => {
    const quarter = (from: number) =>
      own.slice(Math.floor(from * own.length), Math.ceil((from + 0.25) * own.length));
    return (Object.keys(FIGURES) as Figure[]).map((figure) => {
      const { of, warmAfterMs, noise } = FIGURES[figure];
      const inQuarter = (from: number) => of(quarter(from).map((sample) => sample[figure]));
      const [second, last] = [inQuarter(0.25), inQuarter(0.75)];
      const isWarm = (quarter(0.25)[0]?.atMs ?? 0) >= warmAfterMs;
      const isFlat = last <= second * MAX_GROWTH + noise;
      return { gateway, figure, second, last, verdict: isFlat ? 'flat' : isWarm ? 'grew' : 'short' };
    });
  });
}

function lowest(values: readonly number[]): number {
  return Math.min(...values);
}

function median(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[values.length >> 1] ?? Number.NaN;
}
