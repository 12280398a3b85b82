/**
 * The stores against the reference model: random histories of starts, restarts, other writes, repeated and late writes, crashes
 * and elapsed time. `MODEL_RUNS=20000 npx vitest run test/faults/model` runs as many histories on each store; a failure
 * prints the seed and the shortest history that still fails, and `MODEL_SEED=…` runs from that seed again.
 */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { allCommands } from './commands.ts';
import { Reference } from './reference.ts';
import { Model } from './state.ts';
import { redis, sqlite, TIMES } from './worlds.ts';

const RUNS = Number(process.env.MODEL_RUNS ?? 80);
const SEED = process.env.MODEL_SEED;

const parameters = { numRuns: RUNS, ...(SEED ? { seed: Number(SEED) } : {}) };

describe.concurrent.each([await sqlite(), await redis()])('$name', (universe) => {
  it('does what the reference does, whatever the history', { timeout: 30_000 + RUNS * 200 }, async () => {
    let histories = 0;
    const commands = fc.commands(allCommands, { maxCommands: 40, size: '+1' });
    await fc.assert(
      fc.asyncProperty(commands, async (history) => {
        const world = await universe.open();
        await fc.asyncModelRun(() => ({ model: new Model(new Reference(TIMES)), real: world }), history);
        histories++;
      }),
      parameters,
    );
    expect(histories).toBe(RUNS);
  });
});
