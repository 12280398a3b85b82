import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { configFor, openSandbox, startGateway } from '../../e2e/process/gateways.ts';
import { tell } from '../../support/duration.ts';
import { ALPHA, head } from '../../support/wire.ts';
import { Flood, median } from './flood.ts';

const CONNECTIONS = 24;
/** As many wrong keys as right ones, a thousand a second: who is refused is back sooner than who is served. */
const EVERY_MS = 24;
const ROUNDS = 3;
const ROUND_MS = 400;

const wrong = [
  'sk_sandbox_alph',
  'sk_test_revoked',
  'sk_test_expired',
  'sk_test_future',
  'sk_test_unknown',
  'x'.repeat(512),
  '',
].map((secret) => Buffer.from(head('GET /v2/get_balance', `Authorization: Bearer ${secret}`)));
const right = Buffer.from(head('GET /v2/get_balance', ALPHA));

test('a flood of wrong keys delays right ones no more than one of right keys does', async () => {
  const sandbox = await openSandbox();
  const gateway = await startGateway(configFor(sandbox));
  let accepted = 0;
  /** Latencies of one merchant, while everybody else sends these. */
  const amid = async (next: () => Buffer, status: number) => {
    const flood = new Flood(gateway.port, { connections: CONNECTIONS, everyMs: EVERY_MS, next });
    const merchant = new Flood(gateway.port, { connections: 1, next: () => right });
    await sleep(ROUND_MS);
    await Promise.all([merchant.stop(), flood.stop()]);
    expect(merchant.statuses).toEqual({ 200: merchant.answered });
    accepted += merchant.answered + (flood.statuses[200] ?? 0);
    expect(flood.statuses).toEqual({ [status]: flood.answered });
    return { latenciesMs: merchant.latenciesMs, answered: flood.answered };
  };
  let turn = 0;
  const kinds = {
    right: () => amid(() => right, 200),
    wrong: () => amid(() => wrong[turn++ % wrong.length] ?? right, 401),
  };
  await kinds.right();
  await kinds.wrong();
  const rounds: { slower: number; refused: number }[] = [];
  // One good one of several: noise can only make a difference, a real one shows every time.
  const isGood = () => rounds.some(({ slower, refused }) => slower < 1.5 && refused > 50);
  while (rounds.length < ROUNDS && !isGood()) {
    const among = { right: await kinds.right(), wrong: await kinds.wrong() };
    const slower = median(among.wrong.latenciesMs) / median(among.right.latenciesMs);
    rounds.push({ slower, refused: among.wrong.answered });
  }
  tell('wrong keys', rounds);
  expect(isGood(), JSON.stringify(rounds)).toBe(true);
  // Of all that was refused nothing was sent.
  expect(sandbox.requests.total()).toBe(accepted);
});
