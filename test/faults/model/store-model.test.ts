/**
 * The rules on real stores, compared with the rules on the register of tests: random histories of starts, restarts, other
 * writes, races, resolutions and elapsed time. `MODEL_RUNS=20000 npx vitest run test/faults/model` runs as many histories on
 * each store; a failure prints the seed and the shortest history that still fails, and `MODEL_SEED=…` runs from that seed again.
 */
import fc from 'fast-check';
import { describe, it } from 'vitest';
import { History, histories } from './history.ts';
import { reference, universes } from './worlds.ts';

const RUNS = Number(process.env.MODEL_RUNS ?? 30);
const SEED = process.env.MODEL_SEED;

const parameters = { numRuns: RUNS, ...(SEED ? { seed: Number(SEED) } : {}) };

describe.concurrent.each(await universes())('$name', (universe) => {
  it('does what the register of tests does, whatever the history', {
    timeout: 30_000 + RUNS * 200,
  }, async () => {
    await fc.assert(
      fc.asyncProperty(histories, async (steps) => {
        const history = new History(await reference().open(), await universe.open());
        for (const step of steps) await history.take(step);
        await history.compareCounts();
      }),
      parameters,
    );
  });
});
