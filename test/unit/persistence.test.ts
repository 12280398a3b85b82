import { setImmediate as turn } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { Persistence } from '../../src/idempotency/persistence.ts';
import { StoreUnavailable } from '../../src/idempotency/store.ts';
import { until } from '../support/until.ts';

const HOUR_MS = 3_600_000;

it('closing waits for the writes that are under way, and for no later ones', async () => {
  const persistence = new Persistence();
  const [first, second] = [Promise.withResolvers<string>(), Promise.withResolvers<string>()];
  const answered = persistence.untilAnswered(() => first.promise, HOUR_MS);
  let closed = false;
  const closing = persistence.close(0).then(() => {
    closed = true;
  });
  // From here on no write that begins is waited for.
  await until(() => persistence.count === 0);
  const later = persistence.untilAnswered(() => second.promise, HOUR_MS);
  await turn();
  expect(closed).toBe(false);
  first.resolve('ok');
  await closing;
  expect([await answered, persistence.count]).toEqual(['ok', 1]);
  second.resolve('ok');
  expect([await later, persistence.count]).toEqual(['ok', 0]);
});

it('repeats nothing where the store takes nothing any more from this process', async () => {
  const persistence = new Persistence();
  let writes = 0;
  const write = async () => {
    writes++;
    throw new StoreUnavailable('the disk is full', { forGood: true });
  };
  expect(await persistence.untilAnswered(write, HOUR_MS)).toBeUndefined();
  expect([writes, persistence.count]).toEqual([1, 0]);
});
