import request from 'supertest';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { openStack, type Stack } from '../../support/stack.ts';
import { reachingNobody } from '../../support/untouched.ts';
import { ALPHA, chunk, codeOf, head, LAST_CHUNK, Wire } from '../../support/wire.ts';

let stack: Stack;
beforeAll(async () => {
  stack = await openStack({ limits: { bodyBytes: 1000, bodyTimeoutMs: 300 } });
});
afterAll(() => stack.close());

const payout = { action: 'withdraw', amount: 10, bank_code: '058', account_number: '0123456789' };
const post = (path = '/v1/index.php') =>
  request(stack.url).post(path).set('Authorization', 'Bearer sk_sandbox_alpha');

describe('a body over the limit', () => {
  const padded = (bytes: number) => {
    const json = JSON.stringify({ ...payout, padding: '' });
    return json.replace('""', `"${'x'.repeat(bytes - json.length)}"`);
  };

  test('is answered 413 as soon as its chunks pass it, and the connection is closed', async () => {
    await reachingNobody(stack, async () => {
      const wire = await Wire.open(stack.port);
      wire.write(head('POST /v1/index.php', ALPHA, 'Transfer-Encoding: chunked') + chunk('x'.repeat(1000)));
      const answer = await wire.write(chunk('x')).answer();
      expect([answer.status, codeOf(answer)]).toEqual([413, 'body_too_large']);
      expect(answer.headers.connection).toEqual(['close']);
      await wire.ended;
    });
  });

  test('is answered 413 to clients that send it whole before they listen', async () => {
    for (const body of [padded(1001), padded(3_000_000)]) {
      const answer = await reachingNobody(stack, () =>
        post().set('Content-Type', 'application/json').send(body),
      );
      expect([answer.status, answer.body.error.code]).toEqual([413, 'body_too_large']);
    }
  });

  test('is none with exactly the limit', async () => {
    const before = stack.sandbox.ledger.payouts();
    const answer = await post().set('Content-Type', 'application/json').send(padded(1000));
    expect(answer.status).toBe(201);
    expect(stack.sandbox.ledger.payouts()).toBe(before + 1);
  });

  test('is none where it is passed through', async () => {
    const answer = await post('/v3/echo').type('text').send('x'.repeat(1001));
    expect(answer.body.bodyBytes).toBe(1001);
  });

  test('is one of a GET too', async () => {
    await reachingNobody(stack, async () => {
      const wire = await Wire.open(stack.port);
      const answer = await wire.write(head('GET /v2/get_balance', ALPHA, 'Content-Length: 1001')).answer();
      expect(answer.status).toBe(413);
    });
  });
});

describe('a body that does not arrive in time', () => {
  test.each([
    ['of known length', 'Content-Length: 100', '{"action"'],
    ['in chunks', 'Transfer-Encoding: chunked', chunk('{"action"')],
    ['of a GET', 'Content-Length: 100', '{'],
  ])('%s is answered 408, and the connection is closed', async (name, framing, part) => {
    await reachingNobody(stack, async () => {
      const wire = await Wire.open(stack.port);
      const line = name === 'of a GET' ? 'GET /v2/get_balance' : 'POST /v1/index.php';
      const answer = await wire.write(head(line, ALPHA, framing) + part).answer();
      expect([answer.status, codeOf(answer)]).toEqual([408, 'request_timeout']);
      expect(answer.headers.connection).toEqual(['close']);
      await wire.ended;
    });
  });

  test('is not waited for where it is passed through', async () => {
    const wire = await Wire.open(stack.port);
    const started = performance.now();
    wire.write(head('POST /v3/echo', ALPHA, 'Transfer-Encoding: chunked') + chunk('early'));
    // Longer than the limit: time itself is what this is about.
    await new Promise((resolve) => setTimeout(resolve, 400));
    const answer = await wire.write(chunk('late') + LAST_CHUNK).answer();
    expect(performance.now() - started).toBeGreaterThan(300);
    expect([answer.status, answer.json().bodyBytes]).toEqual([200, 9]);
  });

  test('and one that the merchant does not finish is nobody’s business', async () => {
    await reachingNobody(stack, async () => {
      const wire = await Wire.open(stack.port);
      wire.write(head('POST /v1/index.php', ALPHA, 'Content-Length: 100') + JSON.stringify(payout));
      wire.socket.end();
      await wire.ended;
    });
  });
});

describe('a body that two parsers could read in two ways', () => {
  const withdraw = JSON.stringify(payout);
  const bodies: [string, string | Buffer][] = [
    ['no JSON', 'action=withdraw&amount=10'],
    ['nothing', ''],
    ['cut off', withdraw.slice(0, -1)],
    ['a list', `[${withdraw}]`],
    ['two objects', `${withdraw}${withdraw}`],
    ['a member twice', withdraw.replace('{', '{"action":"balance",')],
    ['a member twice, once escaped', withdraw.replace('{', '{"\\u0061ction":"balance",')],
    ['a member twice further down', withdraw.replace('{', '{"to":{"a":1,"a":2},')],
    ['another case', withdraw.replace('action', 'Action')],
    ['another case of the value', withdraw.replace('withdraw', 'WITHDRAW')],
    ['a space too many', withdraw.replace('withdraw', 'withdraw ')],
    ['no string', withdraw.replace('"withdraw"', 'true')],
    ['a byte order mark', `\ufeff${withdraw}`],
    ['Latin-1', Buffer.from(withdraw.replace('058', 'é'), 'latin1')],
    ['UTF-16', Buffer.from(withdraw, 'utf16le')],
  ];

  test.each(bodies)('%s is answered 400 invalid_body, and nothing is sent', async (_name, body) => {
    await reachingNobody(stack, async () => {
      const wire = await Wire.open(stack.port);
      const bytes = Buffer.from(body);
      const fields = [ALPHA, 'x-service-idempotency: ambiguous-1', `Content-Length: ${bytes.length}`];
      const answer = await wire
        .write(head('POST /v1/index.php', ...fields))
        .write(bytes)
        .answer();
      expect([answer.status, codeOf(answer)]).toEqual([400, 'invalid_body']);
    });
  });

  test.each([
    'application/json',
    'text/plain',
    'application/x-www-form-urlencoded',
    'multipart/form-data; boundary=x',
    'application/octet-stream',
  ])('is so whatever its Content-Type says: %s', async (type) => {
    const body = withdraw.replace('{', '{"action":"checkout",');
    const answer = await reachingNobody(stack, () => post().set('Content-Type', type).send(body));
    expect([answer.status, answer.body.error.code]).toEqual([400, 'invalid_body']);
  });

  test('leaves the key free', async () => {
    const twice = withdraw.replace('{', '{"action":"checkout",');
    const keyed = () => post().set('x-service-idempotency', 'free-1').set('Content-Type', 'application/json');
    expect((await keyed().send(twice)).status).toBe(400);
    expect((await keyed().send(withdraw)).status).toBe(201);
    expect(stack.sandbox.ledger.payouts({ key: 'free-1' })).toBe(1);
  });
});

describe('a body that is readable', () => {
  test('and names no declared action goes on as it is, as the operation `other`', async () => {
    const answer = await post().set('x-service-idempotency', 'other-1').send({ action: 'refund' });
    expect([answer.status, answer.body.error.code]).toEqual([422, 'unknown_action']);
    const again = await post().set('x-service-idempotency', 'other-1').send({ action: 'refund' });
    expect(again.headers).not.toHaveProperty('idempotent-replayed');
    expect(stack.sandbox.requests.ofKey('other-1')).toBe(2);
    expect(stack.log.at(-1)).toMatchObject({ operation: 'other', outcome: 'forwarded' });
  });

  test('is a payout whatever its Content-Type says', async () => {
    const send = () =>
      post()
        .set('x-service-idempotency', 'type-1')
        .set('Content-Type', 'text/plain')
        .send(JSON.stringify(payout));
    expect((await send()).status).toBe(201);
    expect((await send()).headers['idempotent-replayed']).toBe('true');
    expect(stack.sandbox.ledger.payouts({ key: 'type-1' })).toBe(1);
  });

  test('of a GET is passed on with it', async () => {
    const wire = await Wire.open(stack.port);
    const answer = await wire
      .write(`${head('GET /v2/get_balance', ALPHA, 'Content-Length: 2')}{}`)
      .write(`${head('GET /v3/echo', ALPHA, 'Content-Length: 5')}hello`)
      .answer();
    expect([answer.status, answer.json().success]).toEqual([200, true]);
    expect((await wire.answer()).json()).toMatchObject({ method: 'GET', url: '/v3/echo', bodyBytes: 5 });
  });
});

test('a route that takes uploads too passes on what is no JSON', async () => {
  const match = { method: 'POST', path: '/v1/index.php', unreadableBody: 'pass' as const };
  const uploads = await openStack({
    operations: [
      {
        name: 'withdraw',
        match: { ...match, body: { action: 'withdraw' } },
        idempotency: { key: 'optional' },
      },
    ],
  });
  try {
    const to = () =>
      request(uploads.url).post('/v1/index.php').set('Authorization', 'Bearer sk_sandbox_alpha');
    const upload = await to().attach('file', Buffer.from('a,b\n1,2'), 'list.csv');
    expect([upload.status, upload.body.error.code]).toEqual([400, 'invalid_json']);
    expect(uploads.sandbox.requests.ofPath('POST /v1/index.php')).toBe(1);
    expect((await to().send(payout)).status).toBe(201);
    expect((await to().send({ ...payout, action: 'Withdraw' })).body.error.code).toBe('invalid_body');
  } finally {
    await uploads.close();
  }
});
