import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { httpBackend } from '../support/backend.ts';
import { isReplay, send, type TestAnswer, withdraw } from '../support/client.ts';
import { openSandbox, stackForTest } from '../support/stack.ts';
import { until } from '../support/until.ts';

const LOOKUP_TOKEN = 'token-of-the-gateway-itself';
const LOOKUP_PATH = '/v1/transactions';

// HTTP caches may keep a 404 without being told to (RFC 9111 §4.2.2), and answer again what was true before the payout.
it('a lookup is not answered by a cache in front of the backend, whose old 404 would release a key that was paid', async () => {
  const sandbox = await openSandbox({ lookupToken: LOOKUP_TOKEN });
  const kept = new Map<string, TestAnswer>();
  const cache = await httpBackend(async (req, res) => {
    const { method = '', url: path = '', headers } = req;
    const mayUse = !/\bno-(?:cache|store)\b/.test(headers['cache-control'] ?? '');
    const body = Buffer.concat(await req.toArray());
    const stored = mayUse ? kept.get(path) : undefined;
    const answer = stored ?? (await send(sandbox.url, { method, path, headers, body }));
    if (method === 'GET') kept.set(path, answer);
    res.writeHead(answer.status, answer.rawHeaders).end(answer.body);
  });
  const lookup = {
    path: `${LOOKUP_PATH}?merchant={merchant}&key={key}`,
    headers: { authorization: `Bearer ${LOOKUP_TOKEN}` },
    released: [404],
    completedStatus: 201,
    ...{ releaseAfterMs: 1000, firstAfterMs: 20, maxPauseMs: 50 },
  };
  const match = { method: 'POST', path: '/v1/index.php' };
  const { url, gateway } = await stackForTest({
    upstream: { url: cache, responseTimeoutMs: 300 },
    lock: { leaseMs: 1000 },
    operations: [{ name: 'withdraw', match, idempotency: { inDoubt: 'lookup', lookup } }],
  });
  const key = randomUUID();
  expect((await withdraw(url, { key, fault: 'delay=60000,once' })).status).toBe(504);
  await until(() => sandbox.requests.ofPath(`GET ${LOOKUP_PATH}`) > 0);
  sandbox.endDelays(key);
  await until(() => sandbox.ledger.payouts({ key }) === 1);
  await until(async () => {
    const found = await gateway.desk.find('M-ALPHA', key);
    return found.kind !== 'found' || found.value.record?.state !== 'in_doubt';
  });
  const retry = await withdraw(url, { key });
  expect([retry.status, isReplay(retry), sandbox.ledger.payouts({ key })]).toEqual([201, true, 1]);
});
