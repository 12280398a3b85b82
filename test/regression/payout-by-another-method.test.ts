import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { send } from '../support/client.ts';
import { legacyBackend, RESET } from '../support/legacy-backend.ts';
import { payoutBody } from '../support/payout.ts';
import { expectProblem } from '../support/problem.ts';
import { inFrontOf } from '../support/stack.ts';

const body = JSON.stringify(payoutBody(5));

it.each(['PUT', 'PATCH', 'DELETE', 'GET', 'OPTIONS'])(
  'a payout sent with %s does not pass the engine by',
  async (method) => {
    const { url, executions } = await legacyBackend();
    await inFrontOf(url, async (gateway) => {
      for (const framing of [
        { 'Content-Length': Buffer.byteLength(body) },
        { 'Transfer-Encoding': 'chunked' },
      ]) {
        const key = randomUUID();
        const ask = (more = {}) => {
          const headers = { Authorization: 'Bearer sk_sandbox_alpha', 'Content-Type': 'application/json' };
          const keyed = { ...headers, 'x-service-idempotency': key, ...framing, ...more };
          return send(gateway.url, { method, path: '/v1/index.php', headers: keyed, body });
        };
        expectProblem(await ask(RESET), { status: 502, code: 'outcome_unknown' });
        expectProblem(await ask(), { status: 409, code: 'outcome_unknown' });
        expect(executions.filter((execution) => execution.key === key)).toHaveLength(1);
      }
      expect(executions.map((execution) => execution.method)).toEqual([method, method]);
    });
  },
);

it('another method without a body or a key is passed on', async () => {
  const { url, executions } = await legacyBackend();
  await inFrontOf(url, async (gateway) => {
    const headers = { Authorization: 'Bearer sk_sandbox_alpha' };
    const answer = await send(gateway.url, { method: 'GET', path: '/v1/index.php', headers });
    expect(answer.status).toBe(201);
    expect(executions).toHaveLength(1);
  });
});
