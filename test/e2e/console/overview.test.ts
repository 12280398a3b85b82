import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import type { Overview } from '../../../src/console/contract.ts';
import type { ShownRecord } from '../../../src/doubts/record-view.ts';
import { withdraw } from '../../support/client.ts';
import { adminPortOf, consoleOptions, loggedIn } from '../../support/console.ts';
import { movableClock } from '../../support/movable-clock.ts';
import { stackForFile } from '../../support/stack.ts';
import { until } from '../../support/until.ts';

const gatewayClock = movableClock();
const options = { admin: consoleOptions, idempotency: { countDoubtsEveryMs: 1000 } };
const stack = await stackForFile(options, {}, gatewayClock);

it('the overview needs attention while a key is in doubt, while a merchant got no result, while the backend hangs, and while the count is old', async () => {
  const browser = await loggedIn(stack.adminUrl);
  const key = randomUUID();
  await withdraw(stack.url, { key, fault: 'execute-then-reset' });
  const counted = (keys: number) =>
    until(async () => {
      const overview = await browser.ask<Overview>('api/overview');
      return overview.doubts.keys === keys ? overview : undefined;
    }, 20_000);
  expect(await counted(1)).toMatchObject({
    state: 'warning',
    doubts: { keys: 1, countedAt: expect.stringMatching(/^\d{4}-/) },
  });
  const { recordId, record } = await browser.ask<ShownRecord>('/records/find', {
    json: { merchant: 'M-ALPHA', key },
  });
  await browser.ask(`/records/${recordId}/resolve`, {
    json: { as: 'completed', execution: record?.execution, reason: 'books' },
  });
  const build = { version: expect.stringMatching(/^\d/) };
  // The merchant got no result within the last minute.
  const lately = { due: 1, results: 0, requests: { unknown: 1 } };
  expect(await counted(0)).toMatchObject({ state: 'warning', mode: 'protect', build, lately });
  const other = await adminPortOf(stack);
  expect((await (await loggedIn(other.url)).ask<Overview>('api/overview')).state).toBe('ok');

  // A payout that the backend does not answer, in the samples of other admin ports.
  const slow = randomUUID();
  const hanging = withdraw(stack.url, { key: slow, fault: 'delay=60000' });
  await until(() => stack.sandbox.requests.ofKey(slow) === 1);
  gatewayClock.pass(5000);
  await adminPortOf(stack);
  gatewayClock.pass(5000);
  const watched = await loggedIn((await adminPortOf(stack)).url);
  expect(await watched.ask<Overview>('api/overview')).toMatchObject({ state: 'warning', longInFlight: 1 });
  stack.sandbox.endDelays(slow);
  expect((await hanging).status).toBe(201);
  // An answer of the backend is its mistake once, however often it is replayed.
  for (let tries = 0; tries < 3; tries++)
    expect((await withdraw(stack.url, { key: `${slow}-500`, fault: 'status=500' })).status).toBe(500);
  expect((await watched.ask<Overview>('api/overview')).lately).toMatchObject({
    ...{ due: 2, results: 1, backendErrors: 1, requests: { replayed: 2 } },
  });

  // The last count is old then, as if the store had not answered since.
  const clock = movableClock();
  const later = await adminPortOf(stack, clock);
  clock.pass(60_000);
  const overview = await (await loggedIn(later.url)).ask<Overview>('api/overview');
  expect([overview.state, overview.doubts.keys]).toEqual(['warning', 0]);
});
