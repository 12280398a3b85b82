/**
 * What src/store/register.ts promises, on every register. `REGISTER_RUNS=20000 npx vitest run test/registers` runs as many
 * histories on each; a failure prints its seed, and `REGISTER_SEED=…` runs from that seed again.
 */
import { describe, expect, it } from 'vitest';
import { eachRowInTurn } from '../support/each-row.ts';
import { mistakes } from './broken.ts';
import { contract } from './contract.ts';
import { keepStep } from './lockstep.ts';
import { memory, type Place, postgres, redis, sqlite, sqliteOfApplication } from './places.ts';

const RUNS = Number(process.env.REGISTER_RUNS ?? 50);
const SEED = process.env.REGISTER_SEED;

const places: Place[] = [
  memory(),
  await sqlite(),
  await sqliteOfApplication(),
  await redis(),
  await postgres(),
];

const keepsContract = (place: Place) =>
  eachRowInTurn(contract, async ([, show]) => {
    await place.reset();
    await show(place);
  });

describe.each(places)('the register in $name', (place) => {
  it('keeps the contract', () => keepsContract(place));

  it('keeps step with the register of tests, whatever the history', {
    timeout: 30_000 + RUNS * 200,
  }, async () => {
    await keepStep(place, { numRuns: RUNS, ...(SEED ? { seed: Number(SEED) } : {}) });
  });
});

it('notices a register with a mistake', async () => {
  await eachRowInTurn(mistakes, ([, Broken]) => expect(keepsContract(memory(Broken))).rejects.toThrow());
});
