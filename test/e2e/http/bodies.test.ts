import { randomUUID } from 'node:crypto';
import request from 'supertest';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { expectNothingSent } from '../../support/nothing-sent.ts';
import { payoutBody } from '../../support/payout.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { ALPHA, chunk, codeOf, head, LAST_CHUNK, Wire, request as wireRequest } from '../../support/wire.ts';

let stack: Stack;
beforeAll(async () => {
  stack = await openStack({ limits: { bodyBytes: 1000, bodyTimeoutMs: 300 } });
});
afterAll(() => stack.close());

const payout = payoutBody();
const post = (path = '/v1/index.php') =>
  request(stack.url).post(path).set('Authorization', 'Bearer sk_sandbox_alpha');

describe('a body over the limit, with a key', () => {
  const padded = (bytes: number) => {
    const json = JSON.stringify({ ...payout, padding: '' });
    return json.replace('""', `"${'x'.repeat(bytes - json.length)}"`);
  };

  test('is answered 413 as soon as its chunks exceed the limit, and the connection is closed', async () => {
    await expectNothingSent(stack, async () => {
      const wire = await Wire.open(stack.port);
      const fields = [ALPHA, 'x-service-idempotency: too-large', 'Transfer-Encoding: chunked'];
      wire.write(head('POST /v1/index.php', ...fields) + chunk('x'.repeat(1000)));
      const answer = await wire.write(chunk('x')).answer();
      expect([answer.status, codeOf(answer)]).toEqual([413, 'body_too_large']);
      expect(answer.headers.connection).toEqual(['close']);
      await wire.ended;
    });
  });

  test('is answered 413 to clients that send it whole before they read', async () => {
    for (const body of [padded(1001), padded(3_000_000)]) {
      const answer = await expectNothingSent(stack, () =>
        post().set('x-service-idempotency', 'too-large').set('Content-Type', 'application/json').send(body),
      );
      expect([answer.status, answer.body.error.code]).toEqual([413, 'body_too_large']);
    }
  });

  test('is accepted with exactly the limit', async () => {
    const before = stack.sandbox.ledger.payouts();
    const answer = await post().set('Content-Type', 'application/json').send(padded(1000));
    expect(answer.status).toBe(201);
    expect(stack.sandbox.ledger.payouts()).toBe(before + 1);
  });

  test('is answered 413 on every path and with every unsafe method', async () => {
    for (const line of ['POST /v3/echo', 'PUT /v1/index.php', 'DELETE /V1/index.php'])
      await expectNothingSent(stack, async () => {
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
    await expectNothingSent(stack, async () => {
      const wire = await Wire.open(stack.port);
      const line = name === 'of a GET' ? 'GET /v2/get_balance' : 'POST /v1/index.php';
      const answer = await wire.write(head(line, ALPHA, framing) + part).answer();
      expect([answer.status, codeOf(answer)]).toEqual([408, 'request_timeout']);
      expect(answer.headers.connection).toEqual(['close']);
      await wire.ended;
    });
  });

  test('has no such limit if it is passed through', async () => {
    const wire = await Wire.open(stack.port);
    const started = performance.now();
    wire.write(head('POST /v3/echo', ALPHA, 'Transfer-Encoding: chunked') + chunk('early'));
    // This test needs real time: longer than bodyTimeoutMs.
    await new Promise((resolve) => setTimeout(resolve, 400));
    const answer = await wire.write(chunk('late') + LAST_CHUNK).answer();
    expect(performance.now() - started).toBeGreaterThan(300);
    expect([answer.status, answer.json().bodyBytes]).toEqual([200, 9]);
  });

  test('is not sent if the merchant closes the connection', async () => {
    await expectNothingSent(stack, async () => {
      const wire = await Wire.open(stack.port);
      wire.write(head('POST /v1/index.php', ALPHA, 'Content-Length: 100') + JSON.stringify(payout));
      wire.socket.end();
      await wire.ended;
    });
  });
});

describe('a body that two parsers could read differently', () => {
  const withdraw = JSON.stringify(payout);
  /** `pays`: the sandbox pays for it. The sandbox uses the last of two members and ignores the content type. */
  const bodies: [name: string, body: string | Buffer, pays: boolean][] = [
    ['not JSON', 'action=withdraw&amount=10', false],
    ['empty', '', false],
    ['truncated JSON', withdraw.slice(0, -1), false],
    ['a list', `[${withdraw}]`, false],
    ['two objects', `${withdraw}${withdraw}`, false],
    ['a member twice', withdraw.replace('{', '{"action":"balance",'), true],
    ['a member twice, once escaped', withdraw.replace('{', '{"\\u0061ction":"balance",'), true],
    ['a nested member twice', withdraw.replace('{', '{"to":{"a":1,"a":2},'), true],
    ['another letter case of the name', withdraw.replace('action', 'Action'), false],
    ['another letter case of the value', withdraw.replace('withdraw', 'WITHDRAW'), false],
    ['a trailing space in the value', withdraw.replace('withdraw', 'withdraw '), false],
    ['a value that is not a string', withdraw.replace('"withdraw"', 'true'), false],
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
  ])('is paid once with any Content-Type: %s', async (type) => {
    const key = randomUUID();
    const body = withdraw.replace('{', '{"action":"checkout",');
    const ask = () => post().set('Content-Type', type).set('x-service-idempotency', key).send(body);
    const [first, retry] = [await ask(), await ask()];
    expect([first.status, retry.status]).toEqual([201, 201]);
    expect(retry.headers['idempotent-replayed']).toBe('true');
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });

  test('uses up its key: another body with it is refused', async () => {
    const twice = withdraw.replace('{', '{"action":"checkout",');
    const keyed = () =>
      post().set('x-service-idempotency', 'taken-1').set('Content-Type', 'application/json');
    expect((await keyed().send(twice)).status).toBe(201);
    const other = await keyed().send(withdraw);
    expect([other.status, other.body.error.code]).toEqual([422, 'idempotency_key_reused']);
    expect(stack.sandbox.ledger.payouts({ key: 'taken-1' })).toBe(1);
  });
});

describe('a body that all parsers read alike', () => {
  test('and names no declared action is forwarded unchanged, as the operation `other`', async () => {
    const answer = await post().set('x-service-idempotency', 'other-1').send({ action: 'refund' });
    expect([answer.status, answer.body.error.code]).toEqual([422, 'unknown_action']);
    const again = await post().set('x-service-idempotency', 'other-1').send({ action: 'refund' });
    expect(again.headers['idempotent-replayed']).toBe('true');
    expect(stack.sandbox.requests.ofKey('other-1')).toBe(1);
  });

  test('is a payout with the Content-Type text/plain', async () => {
    const send = () =>
      post()
        .set('x-service-idempotency', 'type-1')
        .set('Content-Type', 'text/plain')
        .send(JSON.stringify(payout));
    expect((await send()).status).toBe(201);
    expect((await send()).headers['idempotent-replayed']).toBe('true');
    expect(stack.sandbox.ledger.payouts({ key: 'type-1' })).toBe(1);
  });

  test('of a GET is forwarded with it', async () => {
    const wire = await Wire.open(stack.port);
    const answer = await wire
      .write(`${head('GET /v2/get_balance', ALPHA, 'Content-Length: 2')}{}`)
      .write(`${head('GET /v3/echo', ALPHA, 'Content-Length: 5')}hello`)
      .answer();
    expect([answer.status, answer.json().success]).toEqual([200, true]);
    expect((await wire.answer()).json()).toMatchObject({ method: 'GET', url: '/v3/echo', bodyBytes: 5 });
  });
});
