/**
 * Every ordering of two and of three requests with one key: of their store commands, of the first byte and the result of
 * their requests to the backend, of waiting, of dying, of commands whose replies are lost or that happen later, of leases
 * that lapse, of slots that become free and of operators. What runs is the engine itself; the store is the reference
 * model.
 */
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { mistakes } from './broken-stores.ts';
import { BrokenPromise, type Found, search } from './search.ts';
import type { Setup } from './setup.ts';
import { heldTimers } from './timers.ts';

// The pause before a write is repeated. The write itself waits at its gate until the search lets it pass.
vi.mock('node:timers/promises', async (original) => ({
  ...(await original<typeof import('node:timers/promises')>()),
  setTimeout: async () => {},
}));

const { stackTraceLimit } = Error;
beforeAll(() => {
  for (const [name, held] of Object.entries(heldTimers)) vi.stubGlobal(name, held);
  // The search loses commands by the ten thousand, and their stack traces would take most of the time.
  Error.stackTraceLimit = 0;
});
afterAll(() => {
  vi.unstubAllGlobals();
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
  ['losing two commands, dying', { ...two, lostCommands: 2, crashes: 2, lapses: 2 }, 2_737_194n],
  ['waiting, dying', { ...two, waiting: true, crashes: 2, lapses: 2, departures: 1 }, 48_328n],
  [
    'waiting, losing a command, dying',
    { ...two, waiting: true, lostCommands: 1, crashes: 1, lapses: 2 },
    174_432n,
  ],
  [
    'in one engine, losing two commands',
    { ...two, ...one, lostCommands: 2, lapses: 1, departures: 1 },
    413_648n,
  ],
  [
    'sending again, losing two commands, dying',
    { ...two, ...retry, lostCommands: 2, crashes: 1, lapses: 2 },
    28_131_054n,
  ],
  [
    'sending again, waiting, losing a command, dying',
    { ...two, ...retry, waiting: true, lostCommands: 1, crashes: 1, lapses: 2 },
    12_291_740n,
  ],
  [
    'with operators, losing a command, dying',
    { ...two, resolutions: 2, lostCommands: 1, crashes: 1, lapses: 2 },
    908_090n,
  ],
  [
    'with an operator, sending again, losing a command',
    { ...two, ...retry, resolutions: 1, lostCommands: 1, lapses: 2 },
    1_727_278n,
  ],
  [
    'in one engine with one slot',
    { ...two, ...one, ...busy, lostCommands: 1, crashes: 1, lapses: 1, departures: 1 },
    33_625n,
  ],
  [
    'in engines with one slot each',
    { ...two, ...busy, lostCommands: 1, crashes: 1, lapses: 1, departures: 1 },
    3_355_360n,
  ],
  [
    'in engines with one slot each, sending again',
    { ...two, ...retry, ...busy, crashes: 1, lapses: 2 },
    288_256n,
  ],
  ['three, dying', { ...three, crashes: 3, lapses: 2 }, 14_946n],
  ['three, losing two commands', { ...three, lostCommands: 2, lapses: 1 }, 1_148_733_444n],
  ['three, losing a command, dying', { ...three, lostCommands: 1, crashes: 1, lapses: 2 }, 98_889_972n],
  [
    'three, sending again, losing a command',
    { ...three, ...retry, lostCommands: 1, lapses: 1 },
    619_031_388n,
  ],
  ['three, with an operator, dying', { ...three, resolutions: 1, crashes: 1, lapses: 2 }, 128_592n],
  [
    'three in one engine, losing a command',
    { ...three, ...one, lostCommands: 1, lapses: 1, departures: 1 },
    209_577n,
  ],
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
