import { afterAll, beforeAll, expect, test } from 'vitest';
import { expectNothingSent } from '../../support/nothing-sent.ts';
import { payoutBody } from '../../support/payout.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { ALPHA, chunk, LAST_CHUNK, Wire } from '../../support/wire.ts';

let stack: Stack;
beforeAll(async () => {
  stack = await openStack();
});
afterAll(() => stack.close());

const ask = async (line: string, fields: string[] = [], body = '') => {
  const wire = await Wire.open(stack.port);
  wire.write(`${[`${line} HTTP/1.0`, ALPHA, ...fields, '', ''].join('\r\n')}${body}`);
  const answer = await wire.answer();
  return { wire, answer };
};

test('a request is answered, and its connection closed', async () => {
  for (const path of ['/v2/get_balance', '/v3/echo']) {
    const { wire, answer } = await ask(`GET ${path}`);
    expect([answer.status, answer.headers.connection]).toEqual([200, ['close']]);
    await wire.ended;
  }
});

test('an answer of unknown length ends with its connection, and has no chunks', async () => {
  const { answer } = await ask('GET /v3/stream?chunks=2&intervalMs=1');
  expect(answer.headers).not.toHaveProperty('transfer-encoding');
  expect(answer.body.toString()).toBe('data: chunk 1\n\ndata: chunk 2\n\n');
});

test('a payout is executed once', async () => {
  const body = JSON.stringify(payoutBody(1));
  const fields = [`Content-Length: ${body.length}`, 'x-service-idempotency: old-1'];
  const first = (await ask('POST /v1/index.php', fields, body)).answer;
  const second = (await ask('POST /v1/index.php', fields, body)).answer;
  expect([first.status, second.status, second.headers['idempotent-replayed']]).toEqual([201, 201, ['true']]);
  expect(stack.sandbox.ledger.payouts({ key: 'old-1' })).toBe(1);
});

test('100 Continue is not sent, because HTTP/1.0 does not have it', async () => {
  for (const path of ['/v3/echo', '/v1/index.php']) {
    const { answer } = await ask(`POST ${path}`, ['Content-Length: 2', 'Expect: 100-continue'], '{}');
    expect(answer.status).not.toBe(100);
  }
});

test('a chunked body, which HTTP/1.0 does not have either, closes the connection', async () => {
  const fields = ['Transfer-Encoding: chunked', 'Connection: keep-alive'];
  for (const path of ['/v3/echo', '/v1/index.php']) {
    const { wire, answer } = await ask(`POST ${path}`, fields, chunk('{}') + LAST_CHUNK);
    expect([200, 400, 422]).toContain(answer.status);
    expect(answer.headers.connection).toEqual(['close']);
    await wire.ended;
  }
});

test('without credentials a request is refused', async () => {
  const answer = await expectNothingSent(stack, async () => {
    const wire = await Wire.open(stack.port);
    return await wire.write('GET /v3/echo HTTP/1.0\r\n\r\n').answer();
  });
  expect(answer.status).toBe(401);
});
