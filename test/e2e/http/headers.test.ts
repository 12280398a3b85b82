import request from 'supertest';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { httpBackend } from '../../support/backend.ts';
import { payoutBody } from '../../support/payout.ts';
import { inFrontOf, openStack, type Stack } from '../../support/stack.ts';
import { ALPHA, BRAVO, head, Wire, type WireAnswer, request as whole } from '../../support/wire.ts';

let stack: Stack;
beforeAll(async () => {
  stack = await openStack();
});
afterAll(() => stack.close());

interface Echo {
  rawHeaders: [name: string, value: string][];
}

/** The header fields that the backend received: values by lower-case name. */
async function received(...fields: string[]): Promise<Record<string, string[]>> {
  const wire = await Wire.open(stack.port);
  const answer = await wire.write(head('GET /v3/echo', ...fields)).answer();
  expect(answer.status).toBe(200);
  const got: Record<string, string[]> = Object.create(null);
  for (const [name, value] of answer.json<Echo & Record<string, unknown>>().rawHeaders) {
    got[name.toLowerCase()] = [...(got[name.toLowerCase()] ?? []), value];
  }
  return got;
}

describe('the merchant code', () => {
  test('is that of the secret key', async () => {
    expect((await received(ALPHA))['x-merchant-code']).toEqual(['M-ALPHA']);
    expect((await received(BRAVO))['x-merchant-code']).toEqual(['M-BRAVO']);
  });

  test.each([
    ['X-Merchant-Code: M-BRAVO'],
    ['x-merchant-code: M-BRAVO', 'X-MERCHANT-CODE: M-CHARLIE'],
    ['X_Merchant_Code: M-BRAVO', 'x-merchant_code: M-BRAVO'],
    ['X-Merchant-Code: M-BRAVO', 'Connection: x-merchant-code'],
    ['Connection: X-Merchant-Code, Authorization, x-request-id, x-forwarded-for'],
  ])('cannot be set by the merchant: %s', async (...fields) => {
    const got = await received(ALPHA, ...fields);
    expect(got['x-merchant-code']).toEqual(['M-ALPHA']);
    expect(got.authorization).toEqual(['Bearer sk_sandbox_alpha']);
    expect(JSON.stringify(got)).not.toMatch(/M-(?:BRAVO|CHARLIE)/);
  });

  test('is also set by the executor', async () => {
    const seen: string[][] = [];
    const url = await httpBackend((req, res) => {
      seen.push(req.rawHeaders);
      res.end('{}');
    });
    await inFrontOf(url, async (behind) => {
      const answer = await request(behind.url)
        .post('/v1/index.php')
        .set({
          Authorization: 'Bearer sk_sandbox_alpha',
          'X-Merchant-Code': 'M-BRAVO',
          X_Merchant_Code: 'M-BRAVO',
        })
        .set({ Connection: 'x-service-idempotency, authorization', 'x-service-idempotency': 'code-1' })
        .send({ action: 'withdraw' });
      expect(answer.status).toBe(200);
    });
    const [headers = []] = seen;
    const sent = (name: string) => headers.filter((_, i) => i % 2 && headers[i - 1]?.toLowerCase() === name);
    expect(sent('x-merchant-code')).toEqual(['M-ALPHA']);
    expect(sent('authorization')).toEqual(['Bearer sk_sandbox_alpha']);
    expect(sent('x-service-idempotency')).toEqual(['code-1']);
    expect(sent('accept-encoding')).toEqual(['identity']);
    expect(headers.join()).not.toContain('M-BRAVO');
  });
});

describe('a request that is passed through', () => {
  test('has no hop-by-hop fields, nor those that Connection names', async () => {
    const got = await received(
      ALPHA,
      'Connection: close, X-Hop',
      'X-Hop: 1',
      'Keep-Alive: timeout=5',
      'Proxy-Connection: keep-alive',
      'Proxy-Authorization: Basic eDp5',
      'TE: trailers',
      'Trailer: X-Sum',
      'HTTP2-Settings: AAMAAABkAAQAAP__',
      'X-Kept: 1',
    );
    for (const name of [
      'x-hop',
      'keep-alive',
      'proxy-connection',
      'proxy-authorization',
      'te',
      'trailer',
      'http2-settings',
    ]) {
      expect(got, name).not.toHaveProperty(name);
    }
    expect(got.connection).toEqual(['keep-alive']);
    expect(got['x-kept']).toEqual(['1']);
  });

  test('has the merchant’s address, X-Forwarded fields and the request id', async () => {
    const got = await received(
      ALPHA,
      'X-Forwarded-For: 198.51.100.1',
      'X-Forwarded-Proto: https',
      'X-Request-Id: order-4711',
    );
    // No proxy is trusted, so what the merchant says about its address is not believed.
    expect(got['x-forwarded-for']).toEqual(['127.0.0.1']);
    expect(got['x-forwarded-proto']).toEqual(['http']);
    expect(got['x-forwarded-host']).toEqual(['gateway.test']);
    expect(got['x-request-id']).toEqual(['order-4711']);
    expect(got.host).toEqual([stack.sandbox.url.replace('http://', '')]);
  });

  test('keeps every other field, with all its values', async () => {
    const got = await received(
      ALPHA,
      'Accept: a',
      'accept: b',
      'Cookie: a=1',
      'Cookie: b=2',
      'X-Value: \u00e4',
    );
    expect(got.accept?.join(', ')).toBe('a, b');
    expect(got.cookie?.join('; ')).toBe('a=1; b=2');
    expect(got['x-value']).toEqual(['\u00e4']);
  });

  test('keeps fields with the names of JavaScript properties', async () => {
    const got = await received(ALPHA, 'constructor: a', 'valueof: b', 'tostring: c');
    expect([got.constructor, got.valueof, got.tostring]).toEqual([['a'], ['b'], ['c']]);
  });
});

describe('a response that is passed through', () => {
  const answered = async (headers: string[]): Promise<WireAnswer> => {
    const url = await httpBackend((_req, res) => {
      res.writeHead(200, headers);
      res.end('body');
    });
    return await inFrontOf(url, async ({ port }) => {
      const wire = await Wire.open(port);
      return await wire.write(head('GET /v3/x', ALPHA)).answer();
    });
  };

  test('has no hop-by-hop fields, nor those that Connection names', async () => {
    const answer = await answered([
      ...[
        'Connection',
        'X-Hop, close',
        'X-Hop',
        '1',
        'Keep-Alive',
        'timeout=1',
        'Proxy-Authenticate',
        'Basic',
      ],
      ...['Upgrade', 'h2c', 'X-Kept', '1', 'Content-Length', '4'],
    ]);
    for (const name of ['x-hop', 'proxy-authenticate', 'upgrade']) {
      expect(answer.headers, name).not.toHaveProperty(name);
    }
    // The backend's connection is closed; the merchant's stays open.
    expect(answer.headers.connection).toEqual(['keep-alive']);
    expect(answer.headers['keep-alive']).toEqual(['timeout=65']);
    expect(answer.headers['x-kept']).toEqual(['1']);
  });

  test('keeps every other field, with all its values', async () => {
    const answer = await answered([
      ...['Set-Cookie', 'a=1', 'Set-Cookie', 'b=2', 'X_Under_Score', 'kept'],
      ...['Server', 'sandbox', 'Date', 'Thu, 01 Jan 1970 00:00:00 GMT', 'Location', 'http://elsewhere.test/'],
    ]);
    expect(answer.headers['set-cookie']).toEqual(['a=1', 'b=2']);
    expect(answer.headers.x_under_score).toEqual(['kept']);
    expect(answer.headers.date).toEqual(['Thu, 01 Jan 1970 00:00:00 GMT']);
    expect(answer.headers.location).toEqual(['http://elsewhere.test/']);
  });

  test('keeps fields with the names of JavaScript properties', async () => {
    const answer = await answered(['constructor', 'c', '__proto__', 'p']);
    expect(answer.headers.constructor).toEqual(['c']);
    expect(answer.lines).toContain('__proto__: p');
  });
});

test('Connection: close of a merchant closes its connection, for every kind of answer', async () => {
  const payout = JSON.stringify(payoutBody(1));
  for (const [line, body, status] of [
    ['GET /v2/get_balance', '', 200],
    ['POST /v1/index.php', payout, 201],
    ['GET /v3/echo', '', 200],
    ['GET /v3/stream?chunks=1', '', 200],
    ['GET //', '', 400],
  ] as const) {
    const wire = await Wire.open(stack.port);
    const answer = await wire.write(whole(line, [ALPHA, 'Connection: close'], body)).answer();
    expect([answer.status, answer.headers.connection], line).toEqual([status, ['close']]);
    expect(await wire.ended).toBe('end');
  }
});
