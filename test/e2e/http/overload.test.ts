import type { ServerResponse } from 'node:http';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { httpBackend } from '../../support/backend.ts';
import { payoutBody } from '../../support/payout.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, codeOf, head, request, Wire } from '../../support/wire.ts';

const payout = JSON.stringify(payoutBody(1));

test('one request over limits.inFlight is answered 503 at once, and nothing of it is sent', async () => {
  const held: ServerResponse[] = [];
  const url = await httpBackend((_req, res) => void held.push(res));
  const stack = await openStack({ upstream: { url }, limits: { inFlight: 2 } });
  onTestFinished(() => stack.close());
  const running = [await Wire.open(stack.port), await Wire.open(stack.port)];
  for (const wire of running) wire.write(head('GET /v3/slow', ALPHA));
  await until(() => held.length === 2);

  for (const bytes of [
    request('POST /v1/index.php', [ALPHA, 'x-service-idempotency: over-1'], payout),
    head('POST /v1/index.php', ALPHA, 'Content-Length: 1000000'),
    head('GET /v3/echo', ALPHA),
    head('GET /v3/echo'),
  ]) {
    const wire = await Wire.open(stack.port);
    const answer = await wire.write(bytes).answer();
    expect([answer.status, codeOf(answer), answer.headers['retry-after']]).toEqual([
      503,
      'overloaded',
      ['1'],
    ]);
  }
  expect(held).toHaveLength(2);

  for (const res of held) res.end('done');
  for (const wire of running) expect((await wire.answer()).status).toBe(200);
});

test('the key of a payout that was refused for overload is free, and its retry pays once', async () => {
  const stack = await openStack({ limits: { inFlight: 1 } });
  onTestFinished(() => stack.close());
  const slow = await Wire.open(stack.port);
  slow.write(head('GET /v3/echo', ALPHA, 'x-service-idempotency: slow', 'X-Sandbox-Fault: delay=60000'));
  await until(() => stack.sandbox.requests.total() === 1);
  const pay = async () => {
    const wire = await Wire.open(stack.port);
    return await wire
      .write(request('POST /v1/index.php', [ALPHA, 'x-service-idempotency: over-2'], payout))
      .answer();
  };
  const refused = await pay();
  expect([refused.status, codeOf(refused)]).toEqual([503, 'overloaded']);
  expect([stack.sandbox.requests.total(), stack.sandbox.ledger.payouts()]).toEqual([1, 0]);
  stack.sandbox.endDelays('slow');
  await slow.answer();
  const paid = await until(async () => {
    const answer = await pay();
    return answer.status === 201 ? answer : undefined;
  });
  expect(paid.headers).not.toHaveProperty('idempotent-replayed');
  expect(stack.sandbox.ledger.payouts({ key: 'over-2' })).toBe(1);
});

/** No request counts as in flight any more. */
const nothingOpen = async ({ gateway }: Stack) => {
  await until(async () => (await gateway.metrics.text()).includes('oncegate_in_flight 0'), 5000);
};

describe('merchants who disconnect free their places', () => {
  let stack: Stack;
  beforeAll(async () => {
    stack = await openStack({ limits: { inFlight: 100 } });
  });
  afterAll(() => stack.close());

  test('within an upload', async () => {
    const before = stack.sandbox.requests.total();
    for (let i = 1; i <= 3; i++) {
      const wire = await Wire.open(stack.port);
      wire.write(`${head('POST /v3/echo', ALPHA, 'Content-Length: 100')}half`);
      await until(() => stack.sandbox.requests.total() === before + i);
      wire.socket.destroy();
    }
    await nothingOpen(stack);
  });

  test('while their pipelined requests wait', async () => {
    const wire = await Wire.open(stack.port);
    const before = stack.sandbox.requests.total();
    wire.write(head('GET /v3/echo', ALPHA, 'X-Sandbox-Fault: delay=600000'));
    wire.write(head('GET /v3/echo', ALPHA) + head('GET /v2/get_balance', ALPHA) + head('GET /v3/echo'));
    wire.write(request('POST /v1/index.php', [ALPHA, 'x-service-idempotency: ahead-1'], payout));
    await until(() => stack.sandbox.requests.total() === before + 4);
    wire.socket.destroy();
    await nothingOpen(stack);
    expect(stack.sandbox.ledger.payouts({ key: 'ahead-1' })).toBe(1);
  });

  test('without having read their answers', async () => {
    const wire = await Wire.open(stack.port);
    wire.socket.pause();
    wire.write(head('GET /v3/echo').repeat(20_000));
    await until(() => stack.log.length > 1000);
    wire.socket.resetAndDestroy();
    await nothingOpen(stack);
  });
});
