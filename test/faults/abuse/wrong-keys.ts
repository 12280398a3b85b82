import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { configFor, openSandbox, startGateway } from '../../e2e/process/gateways.ts';
import { printFigures } from '../../support/duration.ts';
import { ALPHA, head } from '../../support/wire.ts';
import { Flood, median } from './flood.ts';

const CONNECTIONS = 24;
/** As many wrong keys as right ones, a thousand a second. Without a fixed rate, refused clients would send more. */
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

test('a flood of wrong keys delays valid requests no more than a flood of right keys', async () => {
  const sandbox = await openSandbox();
  const gateway = await startGateway(configFor(sandbox));
  let accepted = 0;
  /** Latencies of one merchant, while all other clients send these requests. */
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
  // One good round of several is enough: a real difference shows every time, noise does not.
  const isGood = () => rounds.some(({ slower, refused }) => slower < 1.5 && refused > 50);
  while (rounds.length < ROUNDS && !isGood()) {
    const among = { right: await kinds.right(), wrong: await kinds.wrong() };
    const slower = median(among.wrong.latenciesMs) / median(among.right.latenciesMs);
    rounds.push({ slower, refused: among.wrong.answered });
  }
  printFigures('wrong keys', rounds);
  expect(isGood(), JSON.stringify(rounds)).toBe(true);
  // None of the refused requests was sent to the backend.
  expect(sandbox.requests.total()).toBe(accepted);
});
