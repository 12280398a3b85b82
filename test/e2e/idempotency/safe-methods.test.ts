import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { send, type TestRequest } from '../../support/client.ts';
import { legacyBackend, RESET } from '../../support/legacy-backend.ts';
import { expectProblem } from '../../support/problem.ts';
import { inFrontOf } from '../../support/stack.ts';
import { ALPHA, head, Wire } from '../../support/wire.ts';

const bearer = { Authorization: 'Bearer sk_sandbox_alpha' };
const FORM = { 'Content-Type': 'application/x-www-form-urlencoded' };

const selecting: [string, TestRequest][] = [
  ['by its query', { path: '/v1/index.php?action=withdraw&amount=10' }],
  ['by its query in PHP', { path: '/v1/index.php?action[]=withdraw' }],
  ['on a path that resembles the declared one', { path: '/v1/Index.php?action=withdraw' }],
  ['by a form', { path: '/v1/index.php', headers: FORM, body: 'action=withdraw' }],
  ['by JSON', { path: '/v1/index.php', body: '{"action":"checkout"}' }],
  ['by a body that the gateway cannot parse', { path: '/v1/index.php', body: '<action>withdraw</action>' }],
  [
    'with a header that overrides the method',
    { path: '/v3/x', headers: { 'X-HTTP-Method-Override': 'POST' } },
  ],
];

it.each(selecting)('a GET that could select an operation %s is executed once', async (_how, asked) => {
  const { url, executions } = await legacyBackend();
  await inFrontOf(url, async (gateway) => {
    const ask = (key: string | undefined, more = {}) =>
      send(gateway.url, {
        ...asked,
        headers: {
          ...bearer,
          'Content-Length': Buffer.byteLength(asked.body ?? ''),
          ...(key !== undefined && { 'x-service-idempotency': key }),
          ...asked.headers,
          ...more,
        },
      });
    const key = randomUUID();
    const [first, retry] = [await ask(key), await ask(key)];
    expect([first.body.toString(), retry.body.toString()]).toEqual(['execution 1', 'execution 1']);
    expect(retry.headers['idempotent-replayed']).toBe('true');

    const lost = randomUUID();
    expectProblem(await ask(lost, RESET), { status: 502, code: 'outcome_unknown' });
    expectProblem(await ask(lost), { status: 409, code: 'outcome_unknown' });
    expect(executions.map((execution) => execution.key)).toEqual([key, lost]);

    // Without a key, each request is sent.
    for (const number of [3, 4]) expect((await ask(undefined)).body.toString()).toBe(`execution ${number}`);
  });
});

it.each<[string, TestRequest]>([
  ['on an undeclared path', { path: '/v3/echo?action=withdraw' }],
  ['that selects nothing', { path: '/v1/index.php?action=refund' }],
  ['of a declared operation', { path: '/v2/get_balance' }],
])('a GET %s is sent each time, even with a key', async (_where, asked) => {
  const { url, executions } = await legacyBackend();
  await inFrontOf(url, async (gateway) => {
    const headers = { ...bearer, 'x-service-idempotency': randomUUID() };
    for (let i = 0; i < 2; i++) {
      const answer = await send(gateway.url, { ...asked, headers });
      expect(answer.status).toBe(201);
      expect(answer.headers).not.toHaveProperty('idempotent-replayed');
    }
    expect(executions).toHaveLength(2);
  });
});

it('a WebSocket handshake that could select an operation is executed once, and never upgraded', async () => {
  const { url, executions } = await legacyBackend();
  await inFrontOf(url, async ({ port }) => {
    const fields = [
      ...['Connection: Upgrade', 'Upgrade: websocket', 'Sec-WebSocket-Version: 13'],
      ...['Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==', 'x-service-idempotency: handshake-1'],
    ];
    for (const target of ['/v1/index.php?action=withdraw', '/v1/index.php?action=withdraw']) {
      const wire = await Wire.open(port);
      const answer = await wire.write(head(`GET ${target}`, ALPHA, ...fields)).answer();
      expect([answer.status, answer.body.toString()]).toEqual([201, 'execution 1']);
      await wire.ended;
    }
    expect(executions).toHaveLength(1);
  });
});
