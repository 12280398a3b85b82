import { afterAll, beforeAll, expect, test } from 'vitest';
import { expectNothingSent } from '../../support/nothing-sent.ts';
import { payoutBody } from '../../support/payout.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import {
  ALPHA,
  BRAVO,
  chunk,
  codeOf,
  head,
  LAST_CHUNK,
  request,
  Wire,
  type WireAnswer,
} from '../../support/wire.ts';

let stack: Stack;
beforeAll(async () => {
  stack = await openStack({ limits: { bodyBytes: 1000 } });
});
afterAll(() => stack.close());

const KEY = 'x-service-idempotency: left-1';

let keys = 0;
const payout = (more: object = {}) => JSON.stringify({ ...payoutBody(1), ...more });
const pay = (key: string, body = payout(), who = ALPHA) =>
  request('POST /v1/index.php', [who, `x-service-idempotency: ${key}`], body);

interface Step {
  name: string;
  bytes: Buffer | string;
  bodiless?: boolean;
  check(answer: WireAnswer): void;
}

const gives = (status: number, code?: string) => (answer: WireAnswer) => {
  expect(answer.status).toBe(status);
  if (code) expect(codeOf(answer)).toBe(code);
};

/** One round of all kinds of requests that keep the connection open. */
function steps(round: number): Step[] {
  const key = `keep-${keys++}`;
  return [
    { name: 'balance', bytes: head('GET /v2/get_balance', ALPHA), check: gives(200) },
    { name: 'payout', bytes: pay(key), check: gives(201) },
    {
      name: 'its replay',
      bytes: pay(key),
      check: (answer) => expect(answer.headers['idempotent-replayed']).toEqual(['true']),
    },
    { name: 'the key of another', bytes: pay(key, payout(), BRAVO), check: gives(201) },
    {
      name: 'another body',
      bytes: pay(key, payout({ amount: 2 })),
      check: gives(422, 'idempotency_key_reused'),
    },
    {
      name: 'a bad body',
      bytes: pay(`bad-${round}`, '{"action":"withdraw","action":1}'),
      // The sandbox reads the last of two members.
      check: gives(422, 'unknown_action'),
    },
    {
      name: 'no JSON',
      bytes: pay(`no-json-${round}`, 'GET / HTTP/1.1\r\n\r\n'),
      check: gives(400, 'invalid_json'),
    },
    { name: 'a bad key', bytes: pay(''), check: gives(400, 'idempotency_key_invalid') },
    { name: 'another action', bytes: pay(key, '{"action":"refund"}'), check: gives(422) },
    {
      name: 'a key that may not',
      bytes: pay(key, payout(), 'Authorization: Bearer sk_test_balance_only'),
      check: gives(403),
    },
    {
      name: 'an upload',
      bytes: head('PUT /v3/echo', ALPHA, 'Transfer-Encoding: chunked') + chunk('x'.repeat(3000)) + LAST_CHUNK,
      check: (answer) => expect(answer.json().bodyBytes).toBe(3000),
    },
    {
      name: 'an echo',
      bytes: request('DELETE /v3/echo?here', [ALPHA], 'gone'),
      check: (answer) =>
        expect(answer.json()).toMatchObject({ method: 'DELETE', url: '/v3/echo?here', bodyBytes: 4 }),
    },
    { name: 'a head', bytes: head('HEAD /v3/echo', ALPHA), bodiless: true, check: gives(200) },
    { name: 'nothing there', bytes: head('GET /v3/nothing', ALPHA), check: gives(404) },
    { name: '204', bytes: head('GET /v3/echo', ALPHA, 'X-Sandbox-Fault: status=204'), check: gives(204) },
    {
      name: 'a payout of 204',
      bytes: pay(`${key}-204`).toString().replace('Host', 'X-Sandbox-Fault: status=204\r\nHost'),
      check: gives(204),
    },
    { name: 'a stream', bytes: head('GET /v3/stream?chunks=3&intervalMs=1', ALPHA), check: gives(200) },
    {
      name: 'a failing backend',
      bytes: head('GET /v3/echo', ALPHA, 'X-Sandbox-Fault: refuse'),
      check: gives(502, 'outcome_unknown'),
    },
    {
      name: 'an upgrade that is none',
      bytes: head('GET /v3/echo', ALPHA, 'Connection: Upgrade', 'Upgrade: h2c'),
      check: gives(200),
    },
  ];
}

test('requests of every kind, one after another on one connection, get each its own answer', async () => {
  const wire = await Wire.open(stack.port);
  for (let round = 0; round < 3; round++) {
    for (const { name, bytes, bodiless = false, check } of steps(round)) {
      const answer = await wire.write(bytes).answer({ bodiless });
      try {
        check(answer);
      } catch (cause) {
        throw new Error(`${name}, in round ${round}: ${answer.status} ${answer.body}`, { cause });
      }
      expect(wire.rest, `behind ${name}`).toBe('');
    }
  }
});

test('pipelined requests are answered in order', async () => {
  const wire = await Wire.open(stack.port);
  const all = steps(0).filter(({ name }) => name !== 'an upgrade that is none');
  // The requests must not depend on each other: this test is only about the order of the answers.
  const apart = all.filter(
    ({ name }) => !['its replay', 'another body', 'the key of another'].includes(name),
  );
  const slow = head('GET /v3/echo?slow', ALPHA, 'X-Sandbox-Fault: delay=100');
  wire.write(slow).write(Buffer.concat(apart.map(({ bytes }) => Buffer.from(bytes))));
  expect((await wire.answer()).json().url).toBe('/v3/echo?slow');
  for (const { name, bodiless = false, check } of apart) {
    const answer = await wire.answer({ bodiless });
    try {
      check(answer);
    } catch (cause) {
      throw new Error(`${name}: ${answer.status} ${answer.body}`, { cause });
    }
  }
});

test('a refusal keeps the connection if no body is left on it', async () => {
  const wire = await Wire.open(stack.port);
  for (const [bytes, status] of [
    [head('GET /v3/echo'), 401],
    [head('GET /v3/echo', 'Authorization: Bearer sk_no'), 401],
    [head('GET /v3//echo', ALPHA), 400],
    [head('GET /v3/echo', 'Authorization: Bearer sk_test_balance_only'), 403],
    [head('POST /v1/index.php', ALPHA, 'Content-Length: 0'), 400],
    [head('GET /v2/get_balance', ALPHA), 200],
  ] as const) {
    const answer = await wire.write(bytes).answer();
    expect([answer.status, answer.headers.connection]).toEqual([status, ['keep-alive']]);
  }
});

test('a refusal closes the connection if a body is left on it, and the body is not read as a request', async () => {
  for (const bytes of [
    head('POST /v3/echo', 'Content-Length: 1000') + head('POST /v3/inside', ALPHA),
    head('POST /v3/echo', 'Transfer-Encoding: chunked') + chunk(head('POST /v3/inside', ALPHA)),
    head('POST /v1/index.php', ALPHA, KEY, 'Content-Length: 3000') + head('POST /v3/inside', ALPHA),
    head('POST /v1/index.php', ALPHA, KEY, 'Transfer-Encoding: chunked') + chunk('x'.repeat(2000)),
  ]) {
    const wire = await Wire.open(stack.port);
    const answer = await wire.write(bytes).answer();
    expect([401, 413]).toContain(answer.status);
    expect(answer.headers.connection).toEqual(['close']);
    await wire.ended;
    expect(wire.rest).toBe('');
  }
  expect(stack.sandbox.requests.ofPath('POST /v3/inside')).toBe(0);
});

test('a refusal keeps the connection if the whole body has arrived, which is not read as a request', async () => {
  for (const bytes of [
    request('POST /v3/echo', [], head('POST /v3/inside', ALPHA)),
    head('POST /v3/echo', 'Transfer-Encoding: chunked') + chunk(head('POST /v3/inside', ALPHA)) + LAST_CHUNK,
  ]) {
    const wire = await Wire.open(stack.port);
    expect((await wire.write(bytes).answer()).status).toBe(401);
    expect((await wire.write(head('GET /v2/get_balance', ALPHA)).answer()).status).toBe(200);
    expect(wire.rest).toBe('');
  }
  expect(stack.sandbox.requests.ofPath('POST /v3/inside')).toBe(0);
});

test('a request that is pipelined after a refused one is executed at most once', async () => {
  const wire = await Wire.open(stack.port);
  wire.write(Buffer.concat([request('POST /v3/echo', [], 'a body'), pay('behind-1')]));
  expect((await wire.answer()).status).toBe(401);
  expect((await wire.answer()).status).toBe(201);
  expect(stack.sandbox.ledger.payouts({ key: 'behind-1' })).toBe(1);
  await expectNothingSent(stack, async () => {
    const unfinished = await Wire.open(stack.port);
    // The payout is part of the announced body.
    unfinished.write(
      Buffer.concat([Buffer.from(head('POST /v3/echo', 'Content-Length: 1000')), pay('behind-2')]),
    );
    expect((await unfinished.answer()).headers.connection).toEqual(['close']);
    await unfinished.ended;
    expect(unfinished.rest).toBe('');
  });
});
