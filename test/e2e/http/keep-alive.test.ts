import { expect, test } from 'vitest';
import { eachRowInTurn } from '../../support/each-row.ts';
import { payoutBody } from '../../support/payout.ts';
import { stackForFile } from '../../support/stack.ts';
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

const stack = await stackForFile({ limits: { bodyBytes: 1000 } });

const CHUNKED = 'Transfer-Encoding: chunked';
const RESTRICTED = 'Authorization: Bearer sk_test_balance_only';
const INSIDE = head('POST /v3/inside', ALPHA);
const BALANCE = head('GET /v2/get_balance', ALPHA);

const payout = (more: object = {}) => JSON.stringify({ ...payoutBody(1), ...more });
const pay = (key: string, body = payout(), ...fields: string[]) =>
  request(
    'POST /v1/index.php',
    [`x-service-idempotency: ${key}`, ...(fields.length ? fields : [ALPHA])],
    body,
  );

type Step = [name: string, bytes: Buffer | string, check: (answer: WireAnswer) => void];
const gives = (status: number, code?: string) => (answer: WireAnswer) => {
  expect(answer.status).toBe(status);
  if (code) expect(codeOf(answer)).toBe(code);
};
const isReplay = ({ headers }: WireAnswer) => expect(headers['idempotent-replayed']).toEqual(['true']);
const echoes = (echo: object) => (answer: WireAnswer) => expect(answer.json()).toMatchObject(echo);

/** One round of all kinds of requests that keep the connection open. */
const steps = (key: string): Step[] => [
  ['balance', BALANCE, gives(200)],
  ['payout', pay(key), gives(201)],
  ['its replay', pay(key), isReplay],
  ['the key of another', pay(key, payout(), BRAVO), gives(201)],
  ['another body', pay(key, payout({ amount: 2 })), gives(422, 'idempotency_key_reused')],
  // The sandbox reads the last of two members.
  ['a bad body', pay(`${key}-bad`, '{"action":"withdraw","action":1}'), gives(422, 'unknown_action')],
  ['no JSON', pay(`${key}-no-json`, 'GET / HTTP/1.1\r\n\r\n'), gives(400, 'invalid_json')],
  ['a bad key', pay(''), gives(400, 'idempotency_key_invalid')],
  ['a key that may not', pay(key, payout(), RESTRICTED), gives(403)],
  [
    'an upload',
    head('PUT /v3/echo', ALPHA, CHUNKED) + chunk('x'.repeat(3000)) + LAST_CHUNK,
    echoes({ bodyBytes: 3000 }),
  ],
  ['an echo', request('DELETE /v3/echo?here', [ALPHA], 'gone'), echoes({ method: 'DELETE', bodyBytes: 4 })],
  ['HEAD', head('HEAD /v3/echo', ALPHA), gives(200)],
  ['nothing there', head('GET /v3/nothing', ALPHA), gives(404)],
  ['204', head('GET /v3/echo', ALPHA, 'X-Sandbox-Fault: status=204'), gives(204)],
  ['a payout of 204', pay(`${key}-204`, payout(), ALPHA, 'X-Sandbox-Fault: status=204'), gives(204)],
  ['a stream', head('GET /v3/stream?chunks=3&intervalMs=1', ALPHA), gives(200)],
  [
    'a failing backend',
    head('GET /v3/echo', ALPHA, 'X-Sandbox-Fault: refuse'),
    gives(502, 'outcome_unknown'),
  ],
];

test('requests of every kind, one after another on one connection, get each its own answer', async () => {
  const wire = await Wire.open(stack.port);
  const upgrade = head('GET /v3/echo', ALPHA, 'Connection: Upgrade', 'Upgrade: h2c');
  for (const round of ['first', 'second', 'third'])
    await eachRowInTurn<Step>(
      [...steps(round), ['an upgrade that is none', upgrade, gives(200)]],
      async ([name, bytes, check]) => {
        check(await wire.write(bytes).answer({ bodiless: name === 'HEAD' }));
        expect(wire.rest).toBe('');
      },
    );
});

test('pipelined requests are answered in order', async () => {
  const wire = await Wire.open(stack.port);
  // The requests must not depend on each other: this test is only about the order of the answers.
  const apart = steps('pipelined').filter(
    ([name]) => !['its replay', 'another body', 'the key of another'].includes(name),
  );
  const slow = head('GET /v3/echo?slow', ALPHA, 'X-Sandbox-Fault: delay=100');
  wire.write(slow).write(Buffer.concat(apart.map(([, bytes]) => Buffer.from(bytes))));
  expect((await wire.answer()).json().url).toBe('/v3/echo?slow');
  await eachRowInTurn(apart, async ([name, , check]) =>
    check(await wire.answer({ bodiless: name === 'HEAD' })),
  );
});

test('a refusal keeps the connection if no body is left on it', async () => {
  const wire = await Wire.open(stack.port);
  for (const [bytes, status] of [
    [head('GET /v3/echo'), 401],
    [head('GET /v3/echo', 'Authorization: Bearer sk_no'), 401],
    [head('GET /v3//echo', ALPHA), 400],
    [head('GET /v3/echo', RESTRICTED), 403],
    [head('POST /v1/index.php', ALPHA, 'Content-Length: 0'), 400],
    [request('POST /v3/echo', [], INSIDE), 401],
    [head('POST /v3/echo', CHUNKED) + chunk(INSIDE) + LAST_CHUNK, 401],
    [BALANCE, 200],
  ] as const) {
    const answer = await wire.write(bytes).answer();
    expect([answer.status, answer.headers.connection]).toEqual([status, ['keep-alive']]);
    expect(wire.rest).toBe('');
  }
  expect(stack.sandbox.requests.ofPath('POST /v3/inside')).toBe(0);
});
