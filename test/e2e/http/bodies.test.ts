import { randomBytes, randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { send, withdraw } from '../../support/client.ts';
import { eachRowInTurn } from '../../support/each-row.ts';
import { legacyBackendForFile, sha256 } from '../../support/legacy-backend.ts';
import { metric } from '../../support/metrics.ts';
import { expectNothingSent } from '../../support/nothing-sent.ts';
import { payoutBody } from '../../support/payout.ts';
import { expectProblem } from '../../support/problem.ts';
import { payAndLeave, stackForFile, stackForTest } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, chunk, codeOf, head, LAST_CHUNK, request, Wire } from '../../support/wire.ts';

const LIMIT_BYTES = 1000;
const BODY_TIMEOUT_MS = 300;
const limits = { bodyBytes: LIMIT_BYTES, bodyTimeoutMs: BODY_TIMEOUT_MS };

const stack = await stackForFile({ limits });

const EXPECT = 'Expect: 100-continue';
const CHUNKED = 'Transfer-Encoding: chunked';
const newKey = () => `x-service-idempotency: ${randomUUID()}`;
const payout = JSON.stringify(payoutBody(1));

/** A payout of this length. */
const padded = (bytes: number) => {
  const json = JSON.stringify({ ...payoutBody(), padding: '' });
  return json.replace('""', `"${'x'.repeat(bytes - json.length)}"`);
};

/** The answer to bytes after which the gateway closes the connection, with nothing sent to the backend. */
async function refusalOf(...bytes: string[]): Promise<[status: number, code: string]> {
  return await expectNothingSent(stack, async () => {
    const wire = await Wire.open(stack.port);
    for (const piece of bytes) wire.write(piece);
    // The first answer, so that a `100 Continue` would be noticed.
    const answer = await wire.answer();
    expect(answer.headers.connection).toEqual(['close']);
    expect(await wire.ended).toBe('end');
    return [answer.status, codeOf(answer)];
  });
}

/** The beginning of a body, which must not be read as a request. */
const INSIDE = head('POST /v3/inside', ALPHA);
const RESTRICTED = 'Authorization: Bearer sk_test_balance_only';

test('a refused request is answered before its body is read or invited, and the body is not read as a request', async () => {
  const refused: [string, string, string[], [number, string]][] = [
    ['no credentials', 'POST /v1/index.php', [], [401, 'missing_credentials']],
    ['no credentials', 'POST /v3/echo', [], [401, 'missing_credentials']],
    ['an unknown key', 'POST /v1/index.php', ['Authorization: Bearer sk_no'], [401, 'invalid_key']],
    ['a key without the scope', 'PUT /v3/echo', [RESTRICTED], [403, 'insufficient_scope']],
    ['a lookalike', 'POST /v1/index.php/', [RESTRICTED], [403, 'insufficient_scope']],
    ['an override', 'POST /v1/index.php', [RESTRICTED, 'X-HTTP-Method: PUT'], [403, 'insufficient_scope']],
    ['an ambiguous target', 'POST //v1/index.php', [ALPHA], [400, 'invalid_target']],
    ['two hosts', 'POST /v3/echo', [ALPHA, 'Host: other.test'], [400, 'invalid_request']],
    ['a long body', 'POST /v1/index.php', [ALPHA, newKey()], [413, 'body_too_large']],
  ];
  await eachRowInTurn(refused, async ([what, line, fields, expected]) => {
    for (const [framing, body] of [
      ['Content-Length: 1001', INSIDE],
      [CHUNKED, chunk(INSIDE)],
    ] as const) {
      // How long a chunked body is cannot be known before it arrives.
      const isRead = what === 'a long body' && framing === CHUNKED;
      const sent = isRead ? chunk(INSIDE.padEnd(LIMIT_BYTES + 1)) : body;
      expect(await refusalOf(head(line, ...fields, framing), sent)).toEqual(expected);
      if (isRead) continue;
      expect(await refusalOf(head(line, ...fields, framing, EXPECT))).toEqual(expected);
    }
  });
});

describe('a merchant who waits for 100 Continue', () => {
  test.each([
    ['of known length', 'Content-Length: 5', 'hello'],
    ['in chunks', CHUNKED, chunk('hel') + chunk('lo') + LAST_CHUNK],
  ])('gets it, and a body %s is passed through whole, with our headers', async (_how, framing, body) => {
    const wire = await Wire.open(stack.port);
    const forged = ['X-Merchant-Code: M-BRAVO', 'x_merchant_code: M-BRAVO'];
    wire.write(head('POST /v3/echo', ALPHA, EXPECT, framing, ...forged));
    expect((await wire.answer()).status).toBe(100);
    const answer = await wire.write(body).answer();
    const echo = answer.json<{ bodyBytes: number; rawHeaders: [string, string][] }>();
    expect([answer.status, echo.bodyBytes]).toEqual([200, 5]);
    const got = echo.rawHeaders.map(([name, value]) => `${name.toLowerCase()}: ${value}`);
    expect(got.filter((line) => /merchant.code|^expect/.test(line))).toEqual(['x-merchant-code: M-ALPHA']);
  });

  test('gets it, and its payout is executed once', async () => {
    const fields = [ALPHA, 'x-service-idempotency: continue-1'];
    const wire = await Wire.open(stack.port);
    wire.write(head('POST /v1/index.php', ...fields, EXPECT, `Content-Length: ${payout.length}`));
    expect((await wire.answer()).status).toBe(100);
    expect((await wire.write(payout).answer()).status).toBe(201);
    const again = await wire.write(request('POST /v1/index.php', fields, payout)).answer();
    expect(again.headers['idempotent-replayed']).toEqual(['true']);
    expect(stack.sandbox.ledger.payouts({ key: 'continue-1' })).toBe(1);
  });

  test('gets it once, even if no body follows or the body arrives at once, and keeps the connection', async () => {
    const wire = await Wire.open(stack.port);
    wire.write(head('GET /v2/get_balance', ALPHA, EXPECT, 'Content-Length: 0'));
    expect([(await wire.answer()).status, (await wire.answer()).status]).toEqual([100, 200]);
    const fields = [ALPHA, EXPECT];
    wire.write(request('POST /v3/echo', fields, 'hello')).write(request('POST /v3/echo', fields, 'you'));
    for (const bodyBytes of [5, 3]) {
      expect((await wire.answer()).status).toBe(100);
      expect((await wire.answer()).json()).toMatchObject({ bodyBytes });
    }
  });
});

describe('a body over the limit, with a key', () => {
  test('is answered 413 as soon as its chunks exceed the limit, and the connection is closed', async () => {
    const first = head('POST /v1/index.php', ALPHA, newKey(), CHUNKED) + chunk('x'.repeat(LIMIT_BYTES));
    expect(await refusalOf(first, chunk('x'))).toEqual([413, 'body_too_large']);
  });
});

const BYTES = 2 * 1024 * 1024;
const where = { action: 'withdraw' };
const operations = [
  { name: 'withdraw', match: { method: 'POST', path: '/v1/index.php', where } },
  { name: 'upload', match: { method: 'POST', path: '/v1/upload' } },
];
const backend = await legacyBackendForFile();
const behind = await stackForFile({ upstream: { url: backend.url }, operations });

describe('a large body', () => {
  /** An operation with `where`, one without it, and an undeclared path. */
  const PATHS = ['/v1/index.php', '/v1/upload', '/v3/anything'];

  beforeEach(() => {
    backend.executions.length = 0;
  });

  const post = (path: string, framing: object, body: Buffer, key?: string) => {
    const headers = {
      ...{ Authorization: 'Bearer sk_sandbox_alpha', 'Content-Type': 'application/json', ...framing },
      ...(key !== undefined && { 'x-service-idempotency': key }),
    };
    return send(behind.url, { method: 'POST', path, headers, body });
  };

  describe.each([
    ['in chunks', { 'Transfer-Encoding': 'chunked' }],
    ['of known length', { 'Content-Length': BYTES }],
  ])('%s', (_how, framing) => {
    test('without a key is streamed byte for byte', async () => {
      for (const path of PATHS) {
        const body = randomBytes(BYTES);
        expect((await post(path, framing, body)).status).toBe(201);
        expect(backend.executions.at(-1)).toEqual({
          ...{ method: 'POST', target: path, key: undefined, bytes: BYTES, sha256: sha256(body) },
          framing: Object.values(framing).join(),
        });
      }
      expect(behind.log.filter(({ outcome }) => outcome === 'executed')).toEqual([]);
    });

    test('with a key is answered 413, and nothing is sent', async () => {
      for (const path of [...PATHS, '/V1/index.php']) {
        const answer = await post(path, framing, Buffer.alloc(BYTES, 'x'), randomUUID());
        expectProblem(answer, { status: 413, code: 'body_too_large' });
      }
      expect(backend.executions).toEqual([]);
    });
  });
});

describe('a body that does not arrive in time', () => {
  test('is answered 408, and the connection is closed', async () => {
    for (const bytes of [
      `${head('POST /v1/index.php', ALPHA, 'Content-Length: 100')}{"action"`,
      head('POST /v1/index.php', ALPHA, CHUNKED) + chunk('{"action"'),
      `${head('GET /v2/get_balance', ALPHA, 'Content-Length: 100')}{`,
    ])
      expect(await refusalOf(bytes)).toEqual([408, 'request_timeout']);
  });

  test('has no such limit if it is passed through', async () => {
    const wire = await Wire.open(stack.port);
    wire.write(head('POST /v3/echo', ALPHA, CHUNKED) + chunk('early'));
    await sleep(BODY_TIMEOUT_MS + 100);
    const answer = await wire.write(chunk('late') + LAST_CHUNK).answer();
    expect([answer.status, answer.json().bodyBytes]).toEqual([200, 9]);
  });
});

test('a chunked body that turns out to be too large to be held takes nothing of limits.bufferedBytes while it is streamed', async () => {
  const stack = await stackForTest({ limits: { bodyBytes: 60 * 1024, bufferedBytes: 64 * 1024 } });
  const wire = await Wire.open(stack.port);
  const before = stack.sandbox.requests.total();
  wire.write(head('POST /v1/index.php', ALPHA, CHUNKED));
  for (let i = 0; i < 4; i++) wire.write(chunk('x'.repeat(20 * 1024)));
  await until(() => stack.sandbox.requests.total() === before + 1);
  expect(await metric(stack.adminUrl, 'oncegate_buffered_bytes')).toBe(0);
  expect((await withdraw(stack.url, { key: randomUUID() })).status).toBe(201);
  wire.socket.destroy();
});

test('in a small container there is memory for one body that limits.bodyBytes permits', async () => {
  vi.spyOn(process, 'constrainedMemory').mockReturnValue(100_000);
  onTestFinished(() => void vi.restoreAllMocks());
  const stack = await stackForTest({ limits: { bodyBytes: 60 * 1024 } });
  const wire = await Wire.open(stack.port);
  wire.write(request('POST /v1/index.php', [ALPHA, newKey()], padded(60 * 1024)));
  expect((await wire.answer()).status).toBe(201);
});

test('bodies beyond limits.bufferedBytes are refused, also if their merchants have left, and the memory is free again', async () => {
  const HELD = 40_000;
  const stack = await stackForTest({ limits: { bodyBytes: 60 * 1024, bufferedBytes: 64 * 1024 } });
  const held = () => metric(stack.adminUrl, 'oncegate_buffered_bytes');
  const upload = async () => {
    const wire = await Wire.open(stack.port);
    const first = head('POST /v1/index.php', ALPHA, newKey(), 'Content-Length: 50000');
    wire.write(`${first}${'x'.repeat(HELD)}`);
    return wire;
  };
  const slow = await upload();
  await until(async () => (await held()) === HELD);
  const refused = await upload();
  const answer = await refused.answer();
  expect([answer.status, codeOf(answer)]).toEqual([503, 'overloaded']);
  expect(answer.headers['retry-after']).toEqual(['1']);
  await until(async () => (await held()) === HELD);
  slow.socket.destroy();
  await until(async () => (await held()) === 0);
  // An execution whose merchant has left still has its body.
  const key = randomUUID();
  await payAndLeave(stack, key);
  expect(await held()).toBe(JSON.stringify(payoutBody()).length);
  stack.sandbox.endDelays(key);
  await until(async () => (await held()) === 0);
  expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
});
