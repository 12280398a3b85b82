/**
 * Every ordering of two and of three requests with one key: of their store commands, of the first byte and the end of
 * their requests upstream, of waiting, of dying, of commands whose replies are lost or that happen later, and of leases
 * that lapse. What runs is the engine itself; the store is the reference model.
 */
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { brokenStores } from './broken-stores.ts';
import { BrokenPromise, type Found, search } from './search.ts';
import type { Setup } from './setup.ts';
import { heldTimers } from './timers.ts';

// The pause before a write is repeated. The write itself waits at its gate, for as long as the search likes.
vi.mock('node:timers/promises', async (original) => ({
  ...(await original<typeof import('node:timers/promises')>()),
  setTimeout: async () => {},
}));

const { stackTraceLimit } = Error;
beforeAll(() => {
  for (const [name, held] of Object.entries(heldTimers)) vi.stubGlobal(name, held);
  // Lost commands by the ten thousand: their stacks would take most of the time.
  Error.stackTraceLimit = 0;
});
afterAll(() => {
  vi.unstubAllGlobals();
  Error.stackTraceLimit = stackTraceLimit;
});

const two: Setup = { requests: 2, oneEngine: false, waiting: false, lostCommands: 0, crashes: 0, lapses: 0 };
const three: Setup = { ...two, requests: 3 };

/** With the number of orderings that there are, so that the search cannot come to look at fewer unnoticed. */
const searches: [what: string, setup: Setup, orderings: bigint][] = [
  ['losing a command, dying', { ...two, lostCommands: 1, crashes: 2, lapses: 2 }, 809_098n],
  ['waiting, dying', { ...two, waiting: true, crashes: 2, lapses: 2 }, 326_278n],
  [
    'in one engine, waiting, dying',
    { ...two, oneEngine: true, waiting: true, crashes: 1, lapses: 1 },
    22_049n,
  ],
  ['dying', { ...three, crashes: 3, lapses: 2 }, 900_348n],
  ['losing a command', { ...three, lostCommands: 1, lapses: 1 }, 87_136_188n],
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
  ])('counts the same without its reductions (%s)', async (_, setup) => {
    const reduced = await search(setup);
    const plain = await search(setup, { states: false, symmetric: false });
    expect(reduced.orderings).toBe(plain.orderings);
    expect(reduced.states).toBeLessThan(plain.states);
  });

  it.each(brokenStores)('finds what is wrong with a store %s', async (_, broken) => {
    await expect(search({ ...two, lapses: 1, broken })).rejects.toThrow(BrokenPromise);
  });
});
