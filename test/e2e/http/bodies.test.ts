import { randomUUID } from 'node:crypto';
import request from 'supertest';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { openStack, type Stack } from '../../support/stack.ts';
import { reachingNobody } from '../../support/untouched.ts';
import { ALPHA, chunk, codeOf, head, LAST_CHUNK, Wire, request as wireRequest } from '../../support/wire.ts';

let stack: Stack;
beforeAll(async () => {
  stack = await openStack({ limits: { bodyBytes: 1000, bodyTimeoutMs: 300 } });
});
afterAll(() => stack.close());

const payout = { action: 'withdraw', amount: 10, bank_code: '058', account_number: '0123456789' };
const post = (path = '/v1/index.php') =>
  request(stack.url).post(path).set('Authorization', 'Bearer sk_sandbox_alpha');

describe('a body over the limit, under a key', () => {
  const padded = (bytes: number) => {
    const json = JSON.stringify({ ...payout, padding: '' });
    return json.replace('""', `"${'x'.repeat(bytes - json.length)}"`);
  };

  test('is answered 413 as soon as its chunks pass it, and the connection is closed', async () => {
    await reachingNobody(stack, async () => {
      const wire = await Wire.open(stack.port);
      const fields = [ALPHA, 'x-service-idempotency: too-large', 'Transfer-Encoding: chunked'];
      wire.write(head('POST /v1/index.php', ...fields) + chunk('x'.repeat(1000)));
      const answer = await wire.write(chunk('x')).answer();
      expect([answer.status, codeOf(answer)]).toEqual([413, 'body_too_large']);
      expect(answer.headers.connection).toEqual(['close']);
      await wire.ended;
    });
  });

  test('is answered 413 to clients that send it whole before they listen', async () => {
    for (const body of [padded(1001), padded(3_000_000)]) {
      const answer = await reachingNobody(stack, () =>
        post().set('x-service-idempotency', 'too-large').set('Content-Type', 'application/json').send(body),
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

  test('is one on every path and under every method that is not safe', async () => {
    for (const line of ['POST /v3/echo', 'PUT /v1/index.php', 'DELETE /V1/index.php'])
      await reachingNobody(stack, async () => {
        const wire = await Wire.open(stack.port);
        const fields = [ALPHA, 'x-service-idempotency: too-large', 'Content-Length: 1001'];
        const answer = await wire.write(head(line, ...fields)).answer();
        expect([answer.status, codeOf(answer)]).toEqual([413, 'body_too_large']);
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
  /** Whether the sandbox, which takes the last of two members and ignores the type, pays for it. */
  const bodies: [name: string, body: string | Buffer, pays: boolean][] = [
    ['no JSON', 'action=withdraw&amount=10', false],
    ['nothing', '', false],
    ['cut off', withdraw.slice(0, -1), false],
    ['a list', `[${withdraw}]`, false],
    ['two objects', `${withdraw}${withdraw}`, false],
    ['a member twice', withdraw.replace('{', '{"action":"balance",'), true],
    ['a member twice, once escaped', withdraw.replace('{', '{"\\u0061ction":"balance",'), true],
    ['a member twice further down', withdraw.replace('{', '{"to":{"a":1,"a":2},'), true],
    ['another case', withdraw.replace('action', 'Action'), false],
    ['another case of the value', withdraw.replace('withdraw', 'WITHDRAW'), false],
    ['a space too many', withdraw.replace('withdraw', 'withdraw '), false],
    ['no string', withdraw.replace('"withdraw"', 'true'), false],
    ['a byte order mark', `\ufeff${withdraw}`, false],
    ['Latin-1', Buffer.from(withdraw.replace('}', ',"reference":"é"}'), 'latin1'), true],
    ['UTF-16', Buffer.from(withdraw, 'utf16le'), false],
  ];

  test.each(bodies)(
    '%s is forwarded as the operation `other`, and its key protects it',
    async (_name, body, pays) => {
      const key = randomUUID();
      const ask = async (wire: Wire) => {
        const fields = [ALPHA, `x-service-idempotency: ${key}`, 'Content-Type: application/json'];
        return await wire.write(wireRequest('POST /v1/index.php', fields, body)).answer();
      };
      const wire = await Wire.open(stack.port);
      const [first, retry] = [await ask(wire), await ask(wire)];
      expect(pays ? [201] : [400, 422]).toContain(first.status);
      expect(retry.headers['idempotent-replayed']).toEqual(['true']);
      expect(retry.body.equals(first.body)).toBe(true);
      expect(stack.sandbox.requests.ofKey(key)).toBe(1);
      expect(stack.sandbox.ledger.payouts({ key })).toBe(pays ? 1 : 0);
      expect(stack.log.findLast(({ msg }) => msg === 'request')).toMatchObject({ operation: 'other' });
    },
  );

  test.each([
    'application/json',
    'text/plain',
    'application/x-www-form-urlencoded',
    'multipart/form-data; boundary=x',
    'application/octet-stream',
  ])('is paid once whatever its Content-Type says: %s', async (type) => {
    const key = randomUUID();
    const body = withdraw.replace('{', '{"action":"checkout",');
    const ask = () => post().set('Content-Type', type).set('x-service-idempotency', key).send(body);
    const [first, retry] = [await ask(), await ask()];
    expect([first.status, retry.status]).toEqual([201, 201]);
    expect(retry.headers['idempotent-replayed']).toBe('true');
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });

  test('takes the key: another body is another request', async () => {
    const twice = withdraw.replace('{', '{"action":"checkout",');
    const keyed = () =>
      post().set('x-service-idempotency', 'taken-1').set('Content-Type', 'application/json');
    expect((await keyed().send(twice)).status).toBe(201);
    const other = await keyed().send(withdraw);
    expect([other.status, other.body.error.code]).toEqual([422, 'idempotency_key_reused']);
    expect(stack.sandbox.ledger.payouts({ key: 'taken-1' })).toBe(1);
  });
});

describe('a body that is readable', () => {
  test('and names no declared action goes on as it is, as the operation `other`', async () => {
    const answer = await post().set('x-service-idempotency', 'other-1').send({ action: 'refund' });
    expect([answer.status, answer.body.error.code]).toEqual([422, 'unknown_action']);
    const again = await post().set('x-service-idempotency', 'other-1').send({ action: 'refund' });
    expect(again.headers['idempotent-replayed']).toBe('true');
    expect(stack.sandbox.requests.ofKey('other-1')).toBe(1);
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
