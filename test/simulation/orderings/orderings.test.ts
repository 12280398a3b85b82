/**
 * Every ordering of two and of three requests with one key: of their commands to the register, of the first byte and the result
 * of their requests to the backend, of waiting, of dying, of commands whose replies are lost or that happen later, of leases that
 * lapse, of slots that become free and of operators. What runs is the engine with its ledger and its rules, on the register of tests.
 */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { mistakes } from './mistakes.ts';
import { type Found, search } from './search.ts';
import { BrokenPromise, type Setup } from './world.ts';

const { stackTraceLimit } = Error;
beforeAll(() => {
  // The search loses commands by the ten thousand, and their stack traces would take most of the time.
  Error.stackTraceLimit = 0;
});
afterAll(() => {
  Error.stackTraceLimit = stackTraceLimit;
});

const two: Setup = {
  ...{ requests: 2, oneGateway: false, waiting: false, inDoubt: 'hold', slotTaken: false, broken: {} },
  ...{ lostCommands: 0, crashes: 0, lapses: 0, resolutions: 0, departures: 0 },
};

/** Each with its number of orderings, so that the test fails if the search visits fewer. */
const searches: [what: string, setup: Partial<Setup>, orderings: bigint][] = [
  ['losing two commands, dying', { lostCommands: 2, crashes: 2, lapses: 2 }, 758_944n],
  ['waiting, dying', { waiting: true, crashes: 2, lapses: 2, departures: 1 }, 89_866n],
  ['waiting, losing a command, dying', { waiting: true, lostCommands: 1, crashes: 1, lapses: 2 }, 198_074n],
  [
    'in one engine, losing a command',
    { oneGateway: true, waiting: true, lostCommands: 1, lapses: 1, departures: 1 },
    16_363n,
  ],
  ['sending again, losing two commands', { inDoubt: 'retry', lostCommands: 2 }, 23_448n],
  [
    'sending again, losing a command, dying',
    { inDoubt: 'retry', lostCommands: 1, crashes: 1, lapses: 2 },
    27_872_102n,
  ],
  [
    'sending again, waiting, losing a command',
    { inDoubt: 'retry', waiting: true, lostCommands: 1, lapses: 1 },
    13_754_130n,
  ],
  ['sending again, waiting, dying', { inDoubt: 'retry', waiting: true, crashes: 1, lapses: 2 }, 3_087_662n],
  [
    'with operators, losing a command, dying',
    { resolutions: 2, lostCommands: 1, crashes: 1, lapses: 2 },
    762_582n,
  ],
  ['with an operator, sending again', { inDoubt: 'retry', resolutions: 1, lapses: 2 }, 364_584n],
  [
    'with an operator, sending again, losing a command',
    { inDoubt: 'retry', resolutions: 1, lostCommands: 1, lapses: 1 },
    2_450_320n,
  ],
  [
    'in one engine with one slot',
    {
      oneGateway: true,
      waiting: true,
      slotTaken: true,
      lostCommands: 1,
      crashes: 1,
      lapses: 1,
      departures: 1,
    },
    42_692n,
  ],
  [
    'in engines with one slot each',
    { slotTaken: true, lostCommands: 1, crashes: 1, lapses: 1, departures: 1 },
    4_671_546n,
  ],
  [
    'in engines with one slot each, sending again',
    { inDoubt: 'retry', slotTaken: true, crashes: 1, lapses: 2 },
    6_093_374n,
  ],
  ['three, dying', { requests: 3, crashes: 3, lapses: 2 }, 133_770n],
  ['three, losing two commands', { requests: 3, lostCommands: 2, lapses: 1 }, 29_614_296n],
  ['three, losing a command, dying', { requests: 3, lostCommands: 1, crashes: 1, lapses: 2 }, 7_796_472n],
  ['three, sending again', { requests: 3, inDoubt: 'retry', lapses: 1 }, 144_136_314n],
  ['three, with an operator, dying', { requests: 3, resolutions: 1, crashes: 1, lapses: 2 }, 2_888_010n],
  [
    'three in one engine',
    { requests: 3, oneGateway: true, waiting: true, crashes: 1, lapses: 1, departures: 1 },
    13_869n,
  ],
  [
    'three in one engine with one slot',
    { requests: 3, oneGateway: true, waiting: true, slotTaken: true, departures: 2, crashes: 1, lapses: 1 },
    70_414n,
  ],
];

const found: [requests: number, Found][] = [];

describe('every ordering keeps the promise', () => {
  it.each(searches)('%s', { timeout: 120_000 }, async (_, setup, orderings) => {
    const all = await search({ ...two, ...setup });
    found.push([setup.requests ?? 2, all]);
    expect(all.orderings).toBeGreaterThanOrEqual(orderings);
  });

  afterAll(() => {
    const total = (requests: number, count: (all: Found) => bigint) =>
      found
        .filter(([number]) => number === requests)
        .reduce((sum, [, all]) => sum + count(all), 0n)
        .toLocaleString('en');
    const line = (requests: number) =>
      `${requests} requests: ${total(requests, ({ orderings }) => orderings)} orderings (${total(requests, ({ states }) => BigInt(states))} states)`;
    console.log(`orderings: ${line(2)}, ${line(3)}`);
  });
});

describe('the search', () => {
  it.each<[string, Partial<Setup>]>([
    ['lapses', { lapses: 2 }],
    ['deaths', { crashes: 2, lapses: 1 }],
    ['waiting', { waiting: true }],
    ['sending again', { inDoubt: 'retry' }],
    ['losing a command', { lostCommands: 1 }],
    ['an operator', { requests: 1, resolutions: 1, lostCommands: 1, lapses: 1 }],
  ])('counts the same without its reductions (%s)', async (_, setup) => {
    const reduced = await search({ ...two, ...setup });
    const plain = await search({ ...two, ...setup }, { states: false, symmetric: false });
    expect(reduced.orderings).toBe(plain.orderings);
    expect(reduced.states).toBeLessThan(plain.states);
  });

  it.each(mistakes)('finds %s', async (_, broken, setup) => {
    await expect(search({ ...two, ...setup, broken })).rejects.toThrow(BrokenPromise);
  });
});
