import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { httpBackend } from '../../support/backend.ts';
import { inFrontOf, openStack, type Stack } from '../../support/stack.ts';
import { ALPHA, chunk, head, LAST_CHUNK, request, Wire, type WireAnswer } from '../../support/wire.ts';

let stack: Stack;
beforeAll(async () => {
  stack = await openStack();
});
afterAll(() => stack.close());

const METHODS = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'PROPFIND', 'QUERY', 'TRACE'];

interface Echo extends Record<string, unknown> {
  method: string;
  bodyBytes: number;
  rawHeaders: [string, string][];
}

const framingOf = (answer: WireAnswer) =>
  answer
    .json<Echo>()
    .rawHeaders.filter(([name]) => /^(?:content-length|transfer-encoding)$/i.test(name))
    .map(([name, value]) => `${name.toLowerCase()}: ${value}`);

describe.each(METHODS)('%s', (method) => {
  test('with a chunked body: the backend has exactly the body, and the next request is the next request', async () => {
    const wire = await Wire.open(stack.port);
    const body = chunk('hello') + chunk(' ') + chunk('GET /v3/smuggled HTTP/1.1\r\n\r\n') + LAST_CHUNK;
    wire.write(head(`${method} /v3/echo?1`, ALPHA, 'Transfer-Encoding: chunked') + body);
    wire.write(head('GET /v3/echo?2', ALPHA));
    const first = await wire.answer();
    expect(first.json()).toMatchObject({ method, url: '/v3/echo?1', bodyBytes: 35 });
    expect(framingOf(first)).toEqual(['transfer-encoding: chunked']);
    expect((await wire.answer()).json()).toMatchObject({ method: 'GET', url: '/v3/echo?2', bodyBytes: 0 });
    expect(stack.sandbox.requests.ofPath('GET /v3/smuggled')).toBe(0);
  });

  test('with a body of known length: the same', async () => {
    const wire = await Wire.open(stack.port);
    wire.write(request(`${method} /v3/echo?1`, [ALPHA], 'hello')).write(head('GET /v3/echo?2', ALPHA));
    const first = await wire.answer();
    expect(first.json()).toMatchObject({ method, url: '/v3/echo?1', bodyBytes: 5 });
    expect(framingOf(first)).toEqual(['content-length: 5']);
    expect((await wire.answer()).json()).toMatchObject({ url: '/v3/echo?2', bodyBytes: 0 });
  });

  test('without a body: the same', async () => {
    const wire = await Wire.open(stack.port);
    wire.write(head(`${method} /v3/echo?1`, ALPHA)).write(head('GET /v3/echo?2', ALPHA));
    const first = await wire.answer();
    expect(first.json()).toMatchObject({ method, url: '/v3/echo?1', bodyBytes: 0 });
    expect(framingOf(first)).not.toContain('transfer-encoding: chunked');
    expect((await wire.answer()).json()).toMatchObject({ url: '/v3/echo?2', bodyBytes: 0 });
  });
});

describe('HEAD', () => {
  test.each(['/v3/echo', '/v2/get_balance', '/v3/nothing'])(
    '%s: the head of the answer, and no body',
    async (path) => {
      const wire = await Wire.open(stack.port);
      wire.write(head(`HEAD ${path}`, ALPHA)).write(head('GET /v3/echo', ALPHA));
      const answer = await wire.answer({ bodiless: true });
      expect(answer.status).toBe(path === '/v3/nothing' ? 404 : 200);
      expect(Number(answer.headers['content-length']?.[0])).toBeGreaterThan(0);
      expect((await wire.answer()).json()).toMatchObject({ method: 'GET' });
    },
  );

  test('refused: no body either', async () => {
    const wire = await Wire.open(stack.port);
    const answer = await wire.write(head('HEAD /v3/echo', 'Connection: close')).answer({ bodiless: true });
    expect(answer.status).toBe(401);
    await wire.ended;
    expect(wire.rest).toBe('');
  });
});

describe.each([204, 304])('%i', (status) => {
  test.each([
    ['passed through', () => head('GET /v3/echo', ALPHA, `X-Sandbox-Fault: status=${status}`)],
    ['executed', () => head('GET /v2/get_balance', ALPHA, `X-Sandbox-Fault: status=${status}`)],
    [
      'executed under a key',
      () =>
        request(
          'POST /v1/index.php',
          [ALPHA, `x-service-idempotency: bodiless-${status}`, `X-Sandbox-Fault: status=${status}`],
          '{"action":"withdraw"}',
        ),
    ],
  ])('%s has no body, and the next bytes are the next answer, twice', async (_how, bytes) => {
    const wire = await Wire.open(stack.port);
    for (let i = 0; i < 2; i++) {
      const answer = await wire.write(bytes()).answer();
      expect(answer.status).toBe(status);
      expect(answer.headers).not.toHaveProperty('transfer-encoding');
      expect(answer.headers['content-length'] ?? ['0']).toEqual(['0']);
    }
    expect((await wire.write(head('GET /v3/echo', ALPHA)).answer()).json()).toMatchObject({ method: 'GET' });
  });
});

test('status, reason and body of every answer are unchanged', async () => {
  const url = await httpBackend((req, res) => {
    res.writeHead(Number(req.url?.slice(1)), 'As It Is', { 'Content-Type': 'x/y' });
    res.end(Buffer.from([0, 255, 13, 10, 13, 10]));
  });
  await inFrontOf(url, async (behind) => {
    for (const status of [200, 201, 206, 301, 401, 404, 418, 500, 503, 599]) {
      const wire = await Wire.open(behind.port);
      wire.write(head(`GET /${status}`, ALPHA));
      await wire.hears('\r\n\r\n');
      expect(wire.rest).toMatch(new RegExp(`^HTTP/1.1 ${status} As It Is\r\n`));
      expect([...(await wire.answer()).body]).toEqual([0, 255, 13, 10, 13, 10]);
    }
  });
});
