import { expect } from 'vitest';

/** Makes an input for a parser, of some size. */
export interface Sample {
  name: string;
  of(chars: number): string;
}

/** A beginning, a unit that is repeated, an end. */
export function repeated(start: string, unit: string, end = ''): Sample {
  return {
    name: JSON.stringify([start, unit, end]),
    of(chars) {
      const times = Math.max(0, Math.floor((chars - start.length - end.length) / unit.length));
      return `${start}${unit.repeat(times)}${end}`;
    },
  };
}

/** All combinations of these. */
export function combined(
  starts: readonly string[],
  units: readonly string[],
  ends: readonly string[],
): Sample[] {
  return starts.flatMap((start) => units.flatMap((unit) => ends.map((end) => repeated(start, unit, end))));
}

/** A worst case may take so many times as long as a harmless input of its size. */
const MOST_RATIO = 30;
/** Four times the size may take so many times as long. Quadratic growth takes 16 times as long. */
const MOST_GROWTH = 8;
/** Processor time of this process in milliseconds. Unlike elapsed time it does not grow while other processes run. */
const cpuMs = (): number => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
};
/** Shorter times are not compared: they say more about the machine than about the parser. */
const comparedMs = (chars: number): number => Math.max(1, chars * 20e-6);
/** Garbage collection may add to a measurement, so the shortest of several counts. */
const BASELINE_MEASUREMENTS = 8;
/** A time that is too long is measured again for so long. */
const GIVE_UP_MS = 300;

export interface Samples<Input> {
  /** Makes the parser's input of a text. Not measured. */
  prepare?: (text: string) => Input;
  harmless: Sample;
  worst: readonly Sample[];
  /** Ascending: a quadratic parser fails at the first size before the last one takes minutes. */
  sizes: readonly number[];
}

/** Expects that the time of `parse` grows linearly, whatever the input. */
export function expectLinear<Input = string>(
  parse: (input: Input) => unknown,
  samples: Samples<Input>,
): void {
  const { harmless, worst, sizes, prepare = (text) => text as Input } = samples;
  const inputOf = (sample: Sample, chars: number) => prepare(sample.of(chars));
  /** Without `enoughMs`, a baseline. Otherwise it stops at a time that is short enough. */
  const shortestMs = (input: Input, enoughMs?: number): number => {
    const beganMs = performance.now();
    let shortest = Number.POSITIVE_INFINITY;
    for (let i = 0; ; i++) {
      const startedMs = cpuMs();
      parse(input);
      shortest = Math.min(shortest, cpuMs() - startedMs);
      const isEnough = enoughMs === undefined ? i + 1 >= BASELINE_MEASUREMENTS : shortest <= enoughMs;
      if (isEnough || (i >= 2 && performance.now() - beganMs > GIVE_UP_MS)) return shortest;
    }
  };
  for (const chars of sizes) {
    const boundMs = Math.max(comparedMs(chars), MOST_RATIO * shortestMs(inputOf(harmless, chars)));
    let slowest = { sample: harmless, ms: 0 };
    for (const sample of worst) {
      const input = inputOf(sample, chars);
      // Elapsed time, which is no shorter, takes no system call.
      const startedMs = performance.now();
      parse(input);
      if (performance.now() - startedMs <= Math.min(slowest.ms, boundMs)) continue;
      const ms = shortestMs(input, boundMs);
      expect(ms, `${chars} characters of ${sample.name}`).toBeLessThanOrEqual(boundMs);
      if (ms > slowest.ms) slowest = { sample, ms };
    }
    // Times of many milliseconds include garbage collection, so growth shows best in a small input.
    if (chars !== sizes[0]) continue;
    const { sample } = slowest;
    const growthMs = Math.max(comparedMs(chars), MOST_GROWTH * shortestMs(inputOf(sample, chars / 4)));
    const ms = shortestMs(inputOf(sample, chars), growthMs);
    expect(ms, `from ${chars / 4} to ${chars} characters of ${sample.name}`).toBeLessThanOrEqual(growthMs);
  }
}
