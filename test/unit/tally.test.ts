import { expect, it } from 'vitest';
import { Tally } from '../../src/kernel/roster.ts';

it('counts what runs, and resolves every waiting promise when nothing runs any more', async () => {
  const tally = new Tally();
  await tally.idle();
  tally.begin();
  tally.begin();
  const resolved: string[] = [];
  const waiting = ['a', 'b'].map((who) => tally.idle().then(() => resolved.push(who)));
  tally.end();
  await Promise.resolve();
  expect([tally.count, resolved]).toEqual([1, []]);
  tally.end();
  await Promise.all(waiting);
  expect([tally.count, resolved]).toEqual([0, ['a', 'b']]);
});
