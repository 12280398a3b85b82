import { randomUUID } from 'node:crypto';
import request from 'supertest';
import { expect, it } from 'vitest';
import { payoutBody } from '../../support/payout.ts';
import { expectProblem } from '../../support/problem.ts';
import { answersOn, payoutBytes, rawConnection } from '../../support/raw.ts';
import { openStackOn } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

const ALPHA = 'Bearer sk_sandbox_alpha';

it('limits.inFlight reached: overloaded', async () => {
  const full = await openStackOn('sqlite', { limits: { inFlight: 1 } });
  try {
    const key = randomUUID();
    const running = request(full.url)
      .post('/v1/index.php')
      .set({ Authorization: ALPHA, 'x-service-idempotency': key, 'X-Sandbox-Fault': 'delay=60000' })
      .send(payoutBody())
      .then((answer) => answer);
    await until(() => full.sandbox.requests.ofKey(key) === 1);
    const refused = await request(full.url)
      .post('/v1/index.php')
      .set('Authorization', ALPHA)
      .send(payoutBody());
    expectProblem(refused, { status: 503, code: 'overloaded', retryAfter: 1 });
    full.sandbox.endDelays(key);
    expect((await running).status).toBe(201);
    expect(full.sandbox.ledger.payouts()).toBe(1);
  } finally {
    await full.close();
  }
});

it('on a connection that outlives the gateway: shutting_down', async () => {
  const ending = await openStackOn('sqlite', { shutdown: { graceMs: 10_000 } });
  try {
    const [first, second] = [randomUUID(), randomUUID()];
    // A connection with a pending answer is closed after it. A connection without any request so far stays open.
    const connection = await rawConnection(ending.port);
    const silent = await rawConnection(ending.port);
    const [running, late] = [answersOn(connection), answersOn(silent)];
    const keepAlive = ['Connection: keep-alive', 'X-Sandbox-Fault: delay=60000'];
    connection.write(payoutBytes({ lines: [...keepAlive, `x-service-idempotency: ${first}`] }));
    await until(() => ending.sandbox.requests.ofKey(first) === 1);
    const ended = ending.shutdown();
    await until(() => !ending.gateway.server.listening);
    silent.write(payoutBytes({ lines: [`x-service-idempotency: ${second}`] }));

    const [refused] = await late;
    ending.sandbox.endDelays(first);
    const [executed] = await running;
    expect(executed).toMatchObject({ status: 201, headers: { connection: 'close' } });
    expectProblem(refused ?? expect.fail('no answer'), {
      status: 503,
      code: 'shutting_down',
      retryAfter: 1,
    });
    await ended;
    expect(ending.sandbox.ledger.payouts({ key: first })).toBe(1);
    expect(ending.sandbox.requests.ofKey(second)).toBe(0);
  } finally {
    await ending.close();
  }
});
