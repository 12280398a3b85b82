import { randomUUID } from 'node:crypto';
import type { OutgoingHttpHeaders } from 'node:http';
import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { send, type TestAnswer } from '../../support/client.ts';
import type { MoreConfig } from '../../support/config.ts';
import { expectProblem } from '../../support/problem.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { until } from '../../support/until.ts';

const FORM = 'application/x-www-form-urlencoded';
const PAYOUT = '{"action":"withdraw","amount":10,"bank_code":"058","account_number":"0123456789"}';

const operations: MoreConfig['operations'] = [
  { name: 'withdraw', match: { method: 'POST', path: '/v1/index.php', where: { action: 'withdraw' } } },
  { name: 'refund', match: { method: 'POST', path: '/v1/payments/:id/refund' } },
];

interface Shape {
  path: string;
  method?: string;
  headers?: OutgoingHttpHeaders;
  body?: string | Buffer;
}

/** A request, and a retry of it that may differ in its bytes. */
type Shapes = [name: string, operation: string, first: Shape, retry?: Shape];

function multipart(boundary: string, path = '/v2/upload'): Shape {
  const part = `--${boundary}\r\nContent-Disposition: form-data; name="action"\r\n\r\nwithdraw\r\n`;
  const headers = { 'Content-Type': `multipart/form-data; boundary=${boundary}` };
  return { path, headers, body: `${part}--${boundary}--\r\n` };
}

function gzipped(seconds: number, path = '/v1/index.php'): Shape {
  const body = gzipSync(PAYOUT);
  body.writeUInt32LE(seconds, 4);
  return { path, headers: { 'Content-Type': 'application/json', 'Content-Encoding': 'gzip' }, body };
}

const as = (type: string, path: string, body: string): Shape => ({
  ...{ path, body, headers: { 'Content-Type': type } },
});

const shapes: Shapes[] = [
  ['a form that selects an operation', 'withdraw', as(FORM, '/v1/index.php', 'action=withdraw&amount=10')],
  ['a form on an undeclared path', 'undeclared', as(FORM, '/v1/payments', 'amount=10')],
  ['a multipart body', 'undeclared', multipart('a'), multipart('b')],
  [
    'a multipart body on a declared path',
    'other',
    multipart('a', '/v1/index.php'),
    multipart('b', '/v1/index.php'),
  ],
  ['a gzip body', 'other', gzipped(1), gzipped(2)],
  ['a gzip body on an undeclared path', 'undeclared', gzipped(0, '/v3/echo'), gzipped(7, '/v3/echo')],
  ['XML', 'other', as('text/xml', '/v1/index.php', '<pay><action>withdraw</action></pay>')],
  [
    'bytes that are not JSON, with its content type',
    'other',
    { ...as('application/json', '/v1/index.php', ''), body: Buffer.of(0xff) },
  ],
  [
    'a body that selects no operation',
    'other',
    as('application/json', '/v1/index.php', '{"action":"refund"}'),
  ],
  ['an empty body', 'other', { path: '/v1/index.php' }],
  ['an empty body on an undeclared path', 'undeclared', { path: '/v3/echo' }],
  ['a path that matches a pattern', 'refund', { path: '/v1/payments/p-1/refund' }],
  ['an undeclared method', 'other', { path: '/v1/payments/p-1/refund', method: 'DELETE' }],
  ['a method of WebDAV', 'undeclared', { path: '/v3/echo', method: 'PROPFIND' }],
  ['a path that resembles a declared one', 'other', as('application/json', '/V1/index.php', PAYOUT)],
  [
    'a header that overrides the method',
    'other',
    { path: '/v3/echo', headers: { 'X-HTTP-Method-Override': 'PUT' } },
  ],
];

function ask(url: string, key: string, { method = 'POST', ...shape }: Shape, more: OutgoingHttpHeaders = {}) {
  const headers = {
    Authorization: 'Bearer sk_sandbox_alpha',
    'x-service-idempotency': key,
    'Content-Length': Buffer.byteLength(shape.body ?? ''),
    ...shape.headers,
    ...more,
  };
  return send(url, { ...shape, method, headers });
}

/** The number of ledger entries with a key. */
const booked = ({ sandbox: { ledger } }: Stack, key: string) =>
  ledger.payouts({ key }) + ledger.charges({ key });
/** On the other paths, the sandbox books only payouts that it can parse. */
const isCharged = ({ path }: Shape) => !['/v1/index.php', '/v3/echo'].includes(path);

/** The log line of an answered request. */
const lineOf = ({ log }: Stack, { headers }: TestAnswer) =>
  until(() => log.find(({ requestId, msg }) => msg === 'request' && requestId === headers['x-request-id']));

describe('a request with a key is executed once, whatever its path and body', () => {
  let stack: Stack;
  beforeAll(async () => {
    stack = await openStack({ operations });
  });
  afterAll(() => stack?.close());

  it.each(shapes)('%s: the retry is a replay', async (_name, operation, first, retry = first) => {
    const key = randomUUID();
    const answers = [await ask(stack.url, key, first), await ask(stack.url, key, retry)] as const;
    const shown = ({ status, body }: TestAnswer) => ({ status, body: body.toString() });
    expect(shown(answers[1])).toEqual(shown(answers[0]));
    expect(answers.map(({ headers }) => headers['idempotent-replayed'])).toEqual([undefined, 'true']);
    expect(stack.sandbox.requests.ofKey(key)).toBe(1);
    expect(booked(stack, key)).toBe(isCharged(first) ? 1 : 0);
    expect(await lineOf(stack, answers[1])).toMatchObject({ operation, outcome: 'replayed' });
  });

  it.each(shapes)(
    '%s: a request with an unknown outcome is not sent again',
    async (_name, operation, first, retry = first) => {
      const key = randomUUID();
      const fault = { 'X-Sandbox-Fault': 'execute-then-reset' };
      const lost = await ask(stack.url, key, first, fault);
      expectProblem(lost, { status: 502, code: 'outcome_unknown' });
      expect(await lineOf(stack, lost)).toMatchObject({ operation, outcome: 'outcome_unknown' });
      expectProblem(await ask(stack.url, key, retry), { status: 409, code: 'outcome_unknown' });
      expect(stack.sandbox.requests.ofKey(key)).toBe(1);
      expect(booked(stack, key)).toBe(isCharged(first) ? 1 : 0);
    },
  );

  it.each(shapes)('%s: the key is refused with another body', async (_name, _operation, first) => {
    const key = randomUUID();
    await ask(stack.url, key, first);
    const other = { ...first, body: Buffer.concat([Buffer.from(first.body ?? ''), Buffer.from(' ')]) };
    expectProblem(await ask(stack.url, key, other), { status: 422, code: 'idempotency_key_reused' });
    expect(stack.sandbox.requests.ofKey(key)).toBe(1);
  });

  it('a payout in JSON with the content type of a form is paid once', async () => {
    const key = randomUUID();
    const shape = as(FORM, '/v1/index.php', PAYOUT);
    const first = await ask(stack.url, key, shape, { 'X-Sandbox-Fault': 'execute-then-reset' });
    expectProblem(first, { status: 502, code: 'outcome_unknown' });
    for (let i = 0; i < 2; i++)
      expectProblem(await ask(stack.url, key, shape), { status: 409, code: 'outcome_unknown' });
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('but without a key it is sent each time', async () => {
    const before = stack.sandbox.ledger.charges();
    const headers = { Authorization: 'Bearer sk_sandbox_alpha' };
    for (let i = 0; i < 2; i++) {
      const answer = await send(stack.url, { method: 'POST', path: '/v1/payments', headers, body: 'x' });
      expect(answer.status).toBe(201);
      expect(await lineOf(stack, answer)).toMatchObject({
        operation: 'undeclared',
        outcome: 'passed_through',
      });
    }
    expect(stack.sandbox.ledger.charges()).toBe(before + 2);
  });
});

describe('idempotency.undeclared', () => {
  const opened = async (undeclared: 'pass' | 'refuse', use: (stack: Stack) => Promise<void>) => {
    const stack = await openStack({ operations, idempotency: { undeclared } });
    try {
      await use(stack);
    } finally {
      await stack.close();
    }
  };

  it('pass: a key has no effect on undeclared paths, and protects all other requests', async () => {
    await opened('pass', async (stack) => {
      const undeclared = shapes.filter(([, operation]) => operation === 'undeclared');
      for (const [name, , shape] of shapes) {
        const key = randomUUID();
        const isPassed = undeclared.some(([other]) => other === name);
        for (let i = 0; i < 2; i++) {
          const line = await lineOf(stack, await ask(stack.url, key, shape));
          if (isPassed) expect(line).toMatchObject({ operation: 'undeclared', outcome: 'passed_through' });
        }
        expect([name, stack.sandbox.requests.ofKey(key)]).toEqual([name, isPassed ? 2 : 1]);
        if (isCharged(shape)) expect([name, booked(stack, key)]).toEqual([name, isPassed ? 2 : 1]);
      }
      expect(undeclared.length).toBeGreaterThan(3);
    });
  });

  it('refuse: an undeclared request is answered 404, and nothing is sent', async () => {
    await opened('refuse', async (stack) => {
      const refused: Shape[] = [
        ...shapes.filter(([, operation]) => operation === 'undeclared').map(([, , shape]) => shape),
        ...[{ path: '/v3/echo', method: 'GET' }, { path: '/' }, { path: '/V1/index.php' }],
        ...[
          { path: '/v1/index.php', method: 'PUT' },
          { path: '/v1/index.php?action=withdraw', method: 'GET' },
        ],
        ...[{ path: '/v1/payments/p-1/refund', method: 'DELETE' }, { path: '/v1/payments/p-1/refund/' }],
        { path: '/v3/echo', headers: { 'X-HTTP-Method-Override': 'GET' } },
        { path: '/v1/payments/p-1/refund', headers: { 'X-Original-URL': '/v3/echo' } },
      ];
      for (const shape of refused)
        expectProblem(await ask(stack.url, randomUUID(), shape), { status: 404, code: 'not_declared' });
      expect(stack.sandbox.requests.total()).toBe(0);
      const key = randomUUID();
      for (let i = 0; i < 2; i++)
        expect((await ask(stack.url, key, as('application/json', '/v1/index.php', PAYOUT))).status).toBe(201);
      expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
      expect((await ask(stack.url, randomUUID(), { path: '/v1/payments/p-1/refund' })).status).toBe(201);
      expect(stack.sandbox.requests.total()).toBe(2);
    });
  });
});
