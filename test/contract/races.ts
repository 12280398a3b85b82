import { describe, expect, it } from 'vitest';
import type { StartAnswer } from '../../src/store/contract.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring, replayOf } from './states.ts';

const RACERS = 64;
const OWNERS = 40;
const PROCESSES = 3;
const KEYS = Array.from({ length: 400 }, (_, number) => `key-${number}`);

export function races(backend: Backend): void {
  describe('a race', () => {
    it('of many starts on one scope has one winner', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const request = newRequest();
      const racers = Array.from({ length: RACERS }, () => duplicateOf(request));
      const answers = await Promise.all(
        racers.map((racer, number) => (number % 2 ? store : other).start(racer)),
      );
      expect(tally(answers)).toEqual({ started: 1, in_flight: RACERS - 1 });
      const winner = racers[answers.findIndex(({ kind }) => kind === 'started')];
      expect((await store.get(request.scope))?.token).toEqual(winner?.token);
    });

    it('of many starts on the scope of a dead owner marks it in doubt once', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open({ leaseMs: 100 }), await nodes.open({ leaseMs: 100 })];
      const owner = await bring(store, 'executing');
      await until(async () => (await store.peek(owner)).kind === 'in_doubt');
      const answers = await Promise.all(
        Array.from({ length: RACERS }, (_, number) => (number % 2 ? store : other).start(duplicateOf(owner))),
      );
      const record = await store.get(owner.scope);
      expect(record).toMatchObject({ state: 'in_doubt', token: owner.token, wasInDoubt: true });
      const { operation, requestId } = owner;
      const expected = { kind: 'in_doubt', sinceMs: record?.changedAtMs, operation, requestId };
      expect(answers).toEqual(Array(RACERS).fill(expected));
    });

    it('of a paused owner’s complete against a start that finds the owner dead keeps the result', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open({ leaseMs: 100 }), await nodes.open({ leaseMs: 100 })];
      const owners = await Promise.all(Array.from({ length: OWNERS }, () => bring(store, 'executing')));
      for (const owner of owners) await until(async () => (await store.peek(owner)).kind === 'in_doubt');
      await Promise.all(
        owners.map(async (owner, number) => {
          const complete = () => store.complete(owner, paid('late'));
          const start = () => other.start(duplicateOf(owner));
          const [completed, started] =
            number % 2
              ? await Promise.all([complete(), start()])
              : (await Promise.all([start(), complete()])).toReversed();
          expect(completed).toBe('ok');
          expect(['in_doubt', 'completed']).toContain((started as StartAnswer).kind);
          expect(await other.start(duplicateOf(owner))).toEqual(replayOf(paid('late'), owner));
          expect(await other.get(owner.scope)).toMatchObject({ token: owner.token, wasInDoubt: true });
        }),
      );
    });

    it('of a start against a complete that finds no record has one winner', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const lost = Array.from({ length: OWNERS }, () => newRequest());
      await Promise.all(
        lost.map(async (owner, number) => {
          const retry = duplicateOf(owner);
          const complete = () => store.complete(owner, paid('late'));
          const start = () => other.start(retry);
          const [completed, started] =
            number % 2
              ? await Promise.all([complete(), start()])
              : (await Promise.all([start(), complete()])).toReversed();
          const won = completed === 'ok';
          expect(started).toEqual(won ? replayOf(paid('late'), owner) : { kind: 'started' });
          expect((await store.get(owner.scope))?.token).toEqual(won ? owner.token : retry.token);
        }),
      );
    });

    it('of several processes has one winner per scope', async () => {
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

function tally(answers: StartAnswer[]): Partial<Record<StartAnswer['kind'], number>> {
  const counts: Partial<Record<StartAnswer['kind'], number>> = {};
  for (const { kind } of answers) counts[kind] = (counts[kind] ?? 0) + 1;
  return counts;
}
