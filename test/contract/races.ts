import { describe, expect, it } from 'vitest';
import type { Claim, Store } from '../../src/idempotency/store.ts';
import { duplicateOf, newRequest } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring } from './states.ts';

const RACERS = 64;
const PROCESSES = 3;
const KEYS = Array.from({ length: 400 }, (_, number) => `key-${number}`);

export function races(backend: Backend): void {
  describe('a race', () => {
    it('of many claims on one scope has one winner', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const request = newRequest();
      const racers = Array.from({ length: RACERS }, (_, number) =>
        (number % 2 ? store : other).claim(duplicateOf(request)),
      );
      expect(tally(await Promise.all(racers))).toEqual({ claimed: 1, in_flight: RACERS - 1 });
    });

    it('of many claims on a claim without owner has one winner', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open({ leaseMs: 1000 }), await nodes.open({ leaseMs: 1000 })];
      const owner = await bring(store, 'claimed');
      await withoutOwner(store);
      const racers = Array.from({ length: RACERS }, () => duplicateOf(owner));
      const claims = await Promise.all(
        racers.map((racer, number) => (number % 2 ? store : other).claim(racer)),
      );
      expect(tally(claims)).toEqual({ claimed: 1, in_flight: RACERS - 1 });
      const winner = racers[claims.findIndex(({ kind }) => kind === 'claimed')];
      expect((await store.get(owner.scope))?.token).toEqual(winner?.token);
    });

    it('of an owner who wakes up against one who takes over has one winner', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open({ leaseMs: 100 }), await nodes.open({ leaseMs: 100 })];
      const owners = await Promise.all(Array.from({ length: 40 }, () => bring(store, 'claimed')));
      await withoutOwner(store);
      await Promise.all(
        owners.map(async (owner, number) => {
          const heir = duplicateOf(owner);
          const begin = () => store.begin(owner);
          const claim = () => other.claim(heir);
          const [first, second] = number % 2 ? [begin, claim] : [claim, begin];
          const answers = await Promise.all([first(), second()]);
          const [begun, claimed] = (number % 2 ? answers : answers.reverse()) as ['ok' | 'stale', Claim];
          expect(claimed.kind === 'claimed').toBe(begun === 'stale');
          expect((await store.get(owner.scope))?.token).toEqual(begun === 'ok' ? owner.token : heir.token);
        }),
      );
    });

    it('of several processes wins each scope once', async () => {
      await using nodes = new Nodes(backend);
      const workers = Array.from({ length: PROCESSES }, (_, number) =>
        nodes.spawn({ kind: 'race', keys: number % 2 ? KEYS : KEYS.toReversed() }),
      );
      for (const worker of workers) await worker.hears('ready');
      for (const worker of workers) worker.go();
      const won = await Promise.all(workers.map(async (worker) => (await worker.hears('won')) as string[]));
      expect(won.flat().toSorted()).toEqual(KEYS.toSorted());
    });
  });
}

/** Resolves when what was claimed before this counts as left without owner: a claim made now is taken over. */
async function withoutOwner(store: Store): Promise<void> {
  const control = await bring(store, 'claimed');
  await until(async () => (await store.claim(duplicateOf(control))).kind === 'claimed');
}

function tally(claims: Claim[]): Partial<Record<Claim['kind'], number>> {
  const counts: Partial<Record<Claim['kind'], number>> = {};
  for (const { kind } of claims) counts[kind] = (counts[kind] ?? 0) + 1;
  return counts;
}
