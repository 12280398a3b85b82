import { expect, it } from 'vitest';
import { Tally } from '../../src/kernel/roster.ts';

it('counts, and tells everybody who waits when nothing runs any more', async () => {
  const tally = new Tally();
  await tally.idle();
  tally.begin();
  tally.begin();
  const told: string[] = [];
  const waiting = ['a', 'b'].map((who) => tally.idle().then(() => told.push(who)));
  tally.end();
  await Promise.resolve();
  expect([tally.count, told]).toEqual([1, []]);
  tally.end();
  await Promise.all(waiting);
  expect([tally.count, told]).toEqual([0, ['a', 'b']]);
});
