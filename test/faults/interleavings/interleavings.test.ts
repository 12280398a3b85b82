/**
 * Every ordering of two and of three requests with one key: of their commands to the register, of the first byte and the result
 * of their requests to the backend, of waiting, of dying, of commands whose replies are lost or that happen later, of leases that
 * lapse, of slots that become free and of operators. What runs is the engine with its ledger and its rules, on the register of tests.
 */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { mistakes } from './mistakes.ts';
import { BrokenPromise, type Found, search } from './search.ts';
import type { Setup } from './setup.ts';

const { stackTraceLimit } = Error;
beforeAll(() => {
  // The search loses commands by the ten thousand, and their stack traces would take most of the time.
  Error.stackTraceLimit = 0;
});
afterAll(() => {
  Error.stackTraceLimit = stackTraceLimit;
});

const two: Setup = {
  ...{ requests: 2, oneEngine: false, waiting: false, inDoubt: 'hold', slotTaken: false },
  ...{ lostCommands: 0, crashes: 0, lapses: 0, resolutions: 0, departures: 0 },
};
const three: Setup = { ...two, requests: 3 };
const retry = { inDoubt: 'retry' } as const;

const one = { oneEngine: true, waiting: true } as const;
const busy = { slotTaken: true } as const;

/** Each with its number of orderings, so that the test fails if the search visits fewer. */
const searches: [what: string, setup: Setup, orderings: bigint][] = [
  ['losing two commands, dying', { ...two, lostCommands: 2, crashes: 2, lapses: 2 }, 758_944n],
  ['waiting, dying', { ...two, waiting: true, crashes: 2, lapses: 2, departures: 1 }, 89_866n],
  [
    'waiting, losing a command, dying',
    { ...two, waiting: true, lostCommands: 1, crashes: 1, lapses: 2 },
    198_074n,
  ],
  ['in one engine, losing a command', { ...two, ...one, lostCommands: 1, lapses: 1, departures: 1 }, 16_363n],
  ['sending again, losing two commands', { ...two, ...retry, lostCommands: 2 }, 23_448n],
  [
    'sending again, losing a command, dying',
    { ...two, ...retry, lostCommands: 1, crashes: 1, lapses: 2 },
    27_872_102n,
  ],
  [
    'sending again, waiting, losing a command',
    { ...two, ...retry, waiting: true, lostCommands: 1, lapses: 1 },
    13_754_130n,
  ],
  ['sending again, waiting, dying', { ...two, ...retry, waiting: true, crashes: 1, lapses: 2 }, 3_087_662n],
  [
    'with operators, losing a command, dying',
    { ...two, resolutions: 2, lostCommands: 1, crashes: 1, lapses: 2 },
    762_582n,
  ],
  ['with an operator, sending again', { ...two, ...retry, resolutions: 1, lapses: 2 }, 364_584n],
  [
    'with an operator, sending again, losing a command',
    { ...two, ...retry, resolutions: 1, lostCommands: 1, lapses: 1 },
    2_450_320n,
  ],
  [
    'in one engine with one slot',
    { ...two, ...one, ...busy, lostCommands: 1, crashes: 1, lapses: 1, departures: 1 },
    42_692n,
  ],
  [
    'in engines with one slot each',
    { ...two, ...busy, lostCommands: 1, crashes: 1, lapses: 1, departures: 1 },
    4_671_546n,
  ],
  [
    'in engines with one slot each, sending again',
    { ...two, ...retry, ...busy, crashes: 1, lapses: 2 },
    6_093_374n,
  ],
  ['three, dying', { ...three, crashes: 3, lapses: 2 }, 133_770n],
  ['three, losing two commands', { ...three, lostCommands: 2, lapses: 1 }, 29_614_296n],
  ['three, losing a command, dying', { ...three, lostCommands: 1, crashes: 1, lapses: 2 }, 7_796_472n],
  ['three, sending again', { ...three, ...retry, lapses: 1 }, 144_136_314n],
  ['three, with an operator, dying', { ...three, resolutions: 1, crashes: 1, lapses: 2 }, 2_888_010n],
  ['three in one engine', { ...three, ...one, crashes: 1, lapses: 1, departures: 1 }, 13_869n],
  [
    'three in one engine with one slot',
    { ...three, ...one, ...busy, departures: 2, crashes: 1, lapses: 1 },
    70_414n,
  ],
];

const found: [Setup, Found][] = [];

describe('every ordering keeps the promise', () => {
  it.each(searches)('%s', { timeout: 120_000 }, async (_, setup, orderings) => {
    const all = await search(setup);
    found.push([setup, all]);
    expect(all.orderings).toBeGreaterThanOrEqual(orderings);
  });

  afterAll(() => {
    const total = (requests: number, count: (all: Found) => bigint) =>
      found
        .filter(([setup]) => setup.requests === requests)
        .reduce((sum, [, all]) => sum + count(all), 0n)
        .toLocaleString('en');
    const line = (requests: number) =>
      `${requests} requests: ${total(requests, ({ orderings }) => orderings)} orderings (${total(requests, ({ states }) => BigInt(states))} states)`;
    console.log(`interleavings: ${line(2)}, ${line(3)}`);
  });
});

describe('the search', () => {
  it.each<[string, Setup]>([
    ['lapses', { ...two, lapses: 2 }],
    ['deaths', { ...two, crashes: 2, lapses: 1 }],
    ['waiting', { ...two, waiting: true }],
    ['sending again', { ...two, ...retry }],
    ['losing a command', { ...two, lostCommands: 1 }],
    ['an operator', { ...two, requests: 1, resolutions: 1, lostCommands: 1, lapses: 1 }],
  ])('counts the same without its reductions (%s)', async (_, setup) => {
    const reduced = await search(setup);
    const plain = await search(setup, { states: false, symmetric: false });
    expect(reduced.orderings).toBe(plain.orderings);
    expect(reduced.states).toBeLessThan(plain.states);
  });

  it.each(mistakes)('finds %s', async (_, setup) => {
    await expect(search({ ...two, ...setup })).rejects.toThrow(BrokenPromise);
  });
});
