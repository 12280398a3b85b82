import { once } from 'node:events';
import request from 'supertest';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { WebSocket } from 'ws';
import { send, type TestAnswer, withdraw } from '../../support/client.ts';
import { metric } from '../../support/metrics.ts';
import { spawnGateway } from '../../support/spawn.ts';
import { connectionsOf, openStack, type Stack } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { idle } from './support/traffic.ts';

let stack: Stack;
beforeAll(async () => {
  stack = await openStack({ upstream: { responseTimeoutMs: 20_000 } });
});
afterAll(() => stack.close());

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const bearer = { Authorization: 'Bearer sk_sandbox_alpha' };
const merchant = () => request.agent(stack.url).auth('sk_sandbox_alpha', { type: 'bearer' });

/** The log lines that `act` caused. */
async function linesOf(act: () => Promise<unknown>): Promise<Record<string, unknown>[]> {
  await idle(stack.adminUrl);
  const from = stack.log.length;
  await act();
  await idle(stack.adminUrl);
  return stack.log.slice(from);
}

/** The line of the one request that `act` made. */
async function lineOf(act: () => Promise<unknown>): Promise<Record<string, unknown>> {
  const lines = await linesOf(act);
  expect(lines.filter(({ msg }) => msg === 'request')).toHaveLength(1);
  return lines.find(({ msg }) => msg === 'request') as Record<string, unknown>;
}

/** Fields of every line. */
const COMMON_FIELDS = ['level', 'time', 'pid', 'hostname', 'msg'];
/** Fields of a request, as far as they are known. */
const FIELDS = [
  ...[
    'requestId',
    'client',
    'merchant',
    'keyId',
    'operation',
    'method',
    'path',
    'status',
    'outcome',
    'scope',
  ],
  ...['durationMs', 'upstreamMs', 'waitMs', 'merchantGone'],
];

describe('each request has one line', () => {
  it('with all that is known about an execution', async () => {
    const line = await lineOf(() => withdraw(stack.url, { key: 'a', fault: 'delay=50' }));
    expect(line).toMatchObject({
      requestId: expect.stringMatching(UUID),
      client: '127.0.0.1',
      merchant: 'M-ALPHA',
      keyId: 'alpha-1',
      operation: 'withdraw',
      method: 'POST',
      path: '/v1/index.php',
      status: 201,
      outcome: 'executed',
      scope: expect.stringMatching(/^[0-9a-f]{16}$/),
      waitMs: 0,
    });
    expect(line.upstreamMs).toBeGreaterThanOrEqual(45);
    expect(line.durationMs).toBeGreaterThanOrEqual(Number(line.upstreamMs));
    expect(line).not.toHaveProperty('merchantGone');
    expect(Object.keys(line).filter((field) => ![...COMMON_FIELDS, ...FIELDS].includes(field))).toEqual([]);
  });

  it('a replay with the scope of the first request, and without time at the backend', async () => {
    const [first, replay] = await linesOf(async () => {
      await withdraw(stack.url, { key: 'b' });
      await withdraw(stack.url, { key: 'b', secret: 'sk_sandbox_alpha_2' });
    });
    expect(replay).toMatchObject({ outcome: 'replayed', status: 201, keyId: 'alpha-2', upstreamMs: 0 });
    expect(replay?.scope).toBe(first?.scope);
    expect(replay?.requestId).not.toBe(first?.requestId);
  });

  it('a duplicate that waited, with its waiting time', async () => {
    const lines = await linesOf(async () => {
      const first = withdraw(stack.url, { key: 'c', fault: 'delay=60000' });
      await until(() => stack.sandbox.requests.ofKey('c') > 0);
      const duplicate = withdraw(stack.url, { key: 'c' });
      await until(async () => (await metric(stack.adminUrl, 'oncegate_waiting')) === 1);
      stack.sandbox.endDelays('c');
      await Promise.all([first, duplicate]);
    });
    expect(lines).toHaveLength(2);
    const waited = lines.find(({ outcome }) => outcome === 'replayed');
    expect(waited?.waitMs).toBeGreaterThan(0);
    expect(waited?.durationMs).toBeGreaterThanOrEqual(Number(waited?.waitMs));
  });

  it.each([
    [
      'a request without credentials',
      () => send(stack.url),
      { outcome: 'missing_credentials', status: 401, operation: 'none' },
    ],
    [
      'a request with an unknown secret key',
      () => withdraw(stack.url, { secret: 'sk_nobody' }),
      { outcome: 'invalid_key', status: 401, operation: 'none' },
    ],
    [
      'a request whose secret key may not call the operation',
      () => withdraw(stack.url, { secret: 'sk_test_balance_only' }),
      { outcome: 'insufficient_scope', status: 403, operation: 'withdraw', keyId: 'alpha-balance' },
    ],
    [
      'an execution whose outcome is unknown',
      () => withdraw(stack.url, { key: 'd', fault: 'execute-then-reset' }),
      { outcome: 'outcome_unknown', status: 502, operation: 'withdraw' },
    ],
    [
      'a declared request without a key',
      () => send(stack.url, { path: '/v2/get_balance', headers: bearer }),
      { outcome: 'forwarded', status: 200, operation: 'balance' },
    ],
    [
      'a request that is passed through',
      () => send(stack.url, { path: '/v3/echo', headers: bearer }),
      { outcome: 'passed_through', status: 200, operation: 'undeclared', method: 'GET' },
    ],
  ])('%s too', async (_, act: () => Promise<TestAnswer>, expected) => {
    let answer: TestAnswer | undefined;
    const line = await lineOf(async () => {
      answer = await act();
    });
    expect(line).toMatchObject(expected);
    expect(line.status).toBe(answer?.status);
    expect(Object.keys(line).filter((field) => ![...COMMON_FIELDS, ...FIELDS].includes(field))).toEqual([]);
  });

  it('an upgrade too, when its connection has closed', async () => {
    const line = await lineOf(async () => {
      const socket = new WebSocket(`ws://127.0.0.1:${stack.port}/v3/ws`, { headers: bearer });
      await once(socket, 'open');
      socket.close();
      await once(socket, 'close');
    });
    expect(line).toMatchObject({ outcome: 'upgraded', merchant: 'M-ALPHA', path: '/v3/ws' });
  });

  it('a merchant who disconnected too, with the outcome of the execution', async () => {
    let heldMs = 0;
    const line = await lineOf(async () => {
      const leaving = new AbortController();
      const gone = withdraw(stack.url, { key: 'e', fault: 'delay=60000', signal: leaving.signal }).catch(
        () => 'gone',
      );
      await until(() => stack.sandbox.requests.ofKey('e') > 0);
      const arrivedMs = performance.now();
      leaving.abort();
      expect(await gone).toBe('gone');
      // The connections of other requests are idle, and close.
      stack.gateway.server.closeIdleConnections();
      await until(async () => (await connectionsOf(stack.gateway.server)) === 0);
      stack.sandbox.endDelays('e');
      heldMs = performance.now() - arrivedMs;
    });
    expect(line).toMatchObject({ outcome: 'executed', merchantGone: true });
    expect(line.durationMs).toBeGreaterThanOrEqual(heldMs);
  });

  it('of JSON on standard output, with its level and time', async () => {
    const spawned = await spawnGateway(stack.config);
    try {
      await withdraw(spawned.url, { key: 'f' });
      await until(() => spawned.lines.some((line) => line.includes('"msg":"request"')));
    } finally {
      await spawned.end();
    }
    const lines = spawned.lines.map((line) => JSON.parse(line) as Record<string, string>);
    const requests = lines.filter(({ msg }) => msg === 'request');
    expect(requests).toHaveLength(1);
    expect(requests[0]).toMatchObject({ level: 'info', time: expect.any(String), outcome: 'executed' });
    expect(new Date(requests[0]?.time ?? '').toISOString()).toBe(requests[0]?.time);
  });
});

describe('no line holds', () => {
  it('a secret key, an idempotency key, an account number, a body, a query, or a path that may be one', async () => {
    const lines = await linesOf(async () => {
      await withdraw(stack.url, { key: 'my-private-key-1' });
      await withdraw(stack.url, { key: 'my-private-key-2', fault: 'execute-then-reset' });
      await withdraw(stack.url, { secret: 'sk_private_stranger' });
      await merchant()
        .get('/v3/accounts/0123456789/NG55-81Z?account=0123456789')
        .set('Cookie', 'session=crumbs');
      await merchant().get('/v2/get_balance?key=my-private-key-3');
    });
    expect(lines.filter(({ msg }) => msg === 'request')).toHaveLength(5);
    const text = JSON.stringify(lines);
    const secrets = ['sk_', 'my-private-key', '0123456789', 'crumbs', 'account=', 'key=', 'NG55', 'Bearer'];
    for (const secret of secrets) expect(text).not.toContain(secret);
    // 058 is the bank code. The same digits may occur within a time or an id.
    expect(text).not.toMatch(/(?<![\w.])058(?!\w)/);
    expect(lines.map(({ path }) => path)).toContain('/v3/accounts/:redacted/:redacted');
  });
});

describe('X-Request-Id', () => {
  const kept = ['12345678', 'a.b_c-D9', '0b0e8f0c-7a3e-4d0f-9d6d-1c1f6f1f6f1f', 'x'.repeat(128)];
  const replaced = [
    '',
    '1234567',
    'x'.repeat(129),
    'with space',
    'semi;colon',
    'a"quote-in-it',
    'ümlaut-ist-da',
  ];

  it.each(kept)('is kept if it is well formed: %s', async (id) => {
    const { line, problemId, backendId } = await seenBy({ 'X-Request-Id': id });
    expect({ line: line.requestId, problemId, backendId }).toEqual({
      line: id,
      problemId: id,
      backendId: id,
    });
  });

  it.each(replaced)('is replaced if it is malformed: %s', async (id) => {
    const { line, problemId, backendId, refusal } = await seenBy({ 'X-Request-Id': encodeLatin1(id) });
    expect(line.requestId).toMatch(UUID);
    expect(backendId).toBe(line.requestId);
    expect(problemId).toMatch(UUID);
    expect(problemId).toBe(refusal.requestId);
  });

  it('is generated if there is none, and is unique', async () => {
    const [one, another] = [await seenBy({}), await seenBy({})];
    const ids = [one.line, one.refusal, another.line, another.refusal].map(({ requestId }) => requestId);
    expect(new Set(ids).size).toBe(4);
    for (const id of ids) expect(id).toMatch(UUID);
  });

  it('is also sent by the executor', async () => {
    const id = 'of-the-executor';
    const line = await lineOf(() => withdraw(stack.url, { key: 'g', headers: { 'X-Request-Id': id } }));
    expect(line).toMatchObject({ requestId: id, outcome: 'executed' });
  });

  /** The ids of an answered request in the log and at the backend, and of a refused one in the log and its problem. */
  async function seenBy(headers: Record<string, string>) {
    let echoed: TestAnswer | undefined;
    const line = await lineOf(async () => {
      echoed = await send(stack.url, { path: '/v3/echo', headers: { ...bearer, ...headers } });
    });
    let refused: TestAnswer | undefined;
    const refusal = await lineOf(async () => {
      refused = await send(stack.url, { headers });
    });
    const { rawHeaders } = echoed?.json<{ rawHeaders: [string, string][] }>() ?? { rawHeaders: [] };
    const ids = rawHeaders
      .filter(([name]) => name.toLowerCase() === 'x-request-id')
      .map(([, value]) => value);
    expect(ids).toHaveLength(1);
    const { error } = refused?.json<{ error: { request_id: string } }>() ?? {};
    expect(refused?.headers['x-request-id']).toBe(error?.request_id);
    return { line, refusal, backendId: ids[0], problemId: error?.request_id };
  }

  /** The text as the bytes of a header. */
  const encodeLatin1 = (text: string): string => Buffer.from(text, 'utf8').toString('latin1');
});
