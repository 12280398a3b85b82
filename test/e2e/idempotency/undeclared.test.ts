import { randomUUID } from 'node:crypto';
import type { OutgoingHttpHeaders } from 'node:http';
import { gzipSync } from 'node:zlib';
import { beforeEach, describe, expect, it } from 'vitest';
import { send, type TestAnswer } from '../../support/client.ts';
import type { MoreConfig } from '../../support/config.ts';
import { eachRowInTurn } from '../../support/each-row.ts';
import { legacyBackendForFile, RESET } from '../../support/legacy-backend.ts';
import { expectProblem } from '../../support/problem.ts';
import { type Stack, stackForFile } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, HANDSHAKE, head, Wire } from '../../support/wire.ts';

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

function multipart(boundary: string): Shape {
  const part = `--${boundary}\r\nContent-Disposition: form-data; name="action"\r\n\r\nwithdraw\r\n`;
  const headers = { 'Content-Type': `multipart/form-data; boundary=${boundary}` };
  return { path: '/v2/upload', headers, body: `${part}--${boundary}--\r\n` };
}

function gzipped(seconds: number): Shape {
  const body = gzipSync(PAYOUT);
  body.writeUInt32LE(seconds, 4);
  const headers = { 'Content-Type': 'application/json', 'Content-Encoding': 'gzip' };
  return { path: '/v1/index.php', headers, body };
}

const as = (type: string, path: string, body: string): Shape => ({
  ...{ path, body, headers: { 'Content-Type': type } },
});

const shapes: Shapes[] = [
  ['a form that selects an operation', 'withdraw', as(FORM, '/v1/index.php', 'action=withdraw&amount=10')],
  ['a form on an undeclared path', 'undeclared', as(FORM, '/v1/payments', 'amount=10')],
  ['a multipart body', 'undeclared', multipart('a'), multipart('b')],
  ['a gzip body', 'other', gzipped(1), gzipped(2)],
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

const stack = await stackForFile({ operations });

describe('a request with a key is executed once, whatever its path and body', () => {
  it('the retry is a replay, and another body is refused', async () => {
    await eachRowInTurn(shapes, async ([, operation, first, retry = first]) => {
      const key = randomUUID();
      const answers = [await ask(stack.url, key, first), await ask(stack.url, key, retry)] as const;
      const shown = ({ status, body }: TestAnswer) => ({ status, body: body.toString() });
      expect(shown(answers[1])).toEqual(shown(answers[0]));
      expect(answers.map(({ headers }) => headers['idempotent-replayed'])).toEqual([undefined, 'true']);
      expect(await lineOf(stack, answers[1])).toMatchObject({ operation, outcome: 'replayed' });
      const other = { ...first, body: Buffer.concat([Buffer.from(first.body ?? ''), Buffer.from(' ')]) };
      expectProblem(await ask(stack.url, key, other), { status: 422, code: 'idempotency_key_reused' });
      expect(stack.sandbox.requests.ofKey(key)).toBe(1);
      expect(booked(stack, key)).toBeLessThanOrEqual(1);
      if (isCharged(first)) expect(booked(stack, key)).toBe(1);
    });
  });

  it('a request with an unknown outcome is not sent again', async () => {
    await eachRowInTurn(shapes, async ([, operation, first, retry = first]) => {
      const key = randomUUID();
      const lost = await ask(stack.url, key, first, { 'X-Sandbox-Fault': 'execute-then-reset' });
      expectProblem(lost, { status: 502, code: 'outcome_unknown' });
      expect(await lineOf(stack, lost)).toMatchObject({ operation, outcome: 'outcome_unknown' });
      expectProblem(await ask(stack.url, key, retry), { status: 409, code: 'outcome_unknown' });
      expect(stack.sandbox.requests.ofKey(key)).toBe(1);
      if (isCharged(first)) expect(booked(stack, key)).toBe(1);
    });
  });
});

const backend = await legacyBackendForFile();
const behind = await stackForFile({ upstream: { url: backend.url } });

describe('a GET', () => {
  beforeEach(() => {
    backend.executions.length = 0;
  });

  it('that could select an operation is executed once', async () => {
    const selecting: [string, Shape][] = [
      ['by its query', { path: '/v1/index.php?action=withdraw&amount=10' }],
      ['by its query in PHP', { path: '/v1/index.php?action[]=withdraw' }],
      ['on a path that resembles the declared one', { path: '/v1/Index.php?action=withdraw' }],
      ['by a form', as(FORM, '/v1/index.php', 'action=withdraw')],
      ['by JSON', as('application/json', '/v1/index.php', '{"action":"checkout"}')],
      ['by another method', { path: '/v3/x', headers: { 'X-HTTP-Method-Override': 'POST' } }],
    ];
    await eachRowInTurn(selecting, async ([, shape]) => {
      const get = { ...shape, method: 'GET' };
      const [key, lost, before] = [randomUUID(), randomUUID(), backend.executions.length];
      const [first, retry] = [await ask(behind.url, key, get), await ask(behind.url, key, get)];
      expect(first.body.toString()).toBe(`execution ${before + 1}`);
      expect([retry.body, retry.headers['idempotent-replayed']]).toEqual([first.body, 'true']);
      expectProblem(await ask(behind.url, lost, get, RESET), { status: 502, code: 'outcome_unknown' });
      expectProblem(await ask(behind.url, lost, get), { status: 409, code: 'outcome_unknown' });
      expect(backend.executions.slice(before).map((execution) => execution.key)).toEqual([key, lost]);
    });
  });

  it('for a WebSocket that could select an operation is executed once, and never upgraded', async () => {
    for (const _ of ['first', 'retry']) {
      const wire = await Wire.open(behind.port);
      const fields = [ALPHA, ...HANDSHAKE, 'x-service-idempotency: handshake-1'];
      const answer = await wire.write(head('GET /v1/index.php?action=withdraw', ...fields)).answer();
      expect([answer.status, answer.body.toString()]).toEqual([201, 'execution 1']);
      await wire.ended;
    }
  });
});
