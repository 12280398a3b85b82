import { randomUUID } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { send, type TestAnswer, type TestRequest } from '../../support/client.ts';
import { temporaryFolder } from '../../support/config.ts';
import { expectProblem } from '../../support/problem.ts';
import { openStack, type Stack } from '../../support/stack.ts';

const SCOPES = ['balance', 'checkout', 'withdraw', 'other', 'undeclared'];
const UNRESTRICTED = 'sk_sandbox_alpha';
const secretOf = (scope: string) => `sk_test_only_${scope}`;

function keyFile(): string {
  const path = join(temporaryFolder(), 'keys.yaml');
  const restricted = SCOPES.map((scope) => ({
    ...{ id: `only-${scope}`, dangerouslyPlainSecret: secretOf(scope), scopes: [scope] },
  }));
  const keys = [{ id: 'all', dangerouslyPlainSecret: UNRESTRICTED }, ...restricted];
  writeFileSync(path, stringify({ merchants: [{ code: 'M-ALPHA', keys }] }));
  return path;
}

let stack: Stack;
/** The number of requests that the sandbox had received before the test. */
let requests: number;
beforeAll(async () => {
  stack = await openStack({ auth: { keys: { source: 'file', path: keyFile() } } });
});
afterAll(() => stack?.close());
beforeEach(() => {
  requests = stack.sandbox.requests.total();
});

function ask(
  secret: string,
  { path = '/v1/index.php', method = 'POST', ...asked }: TestRequest,
  key?: string,
) {
  const headers = {
    Authorization: `Bearer ${secret}`,
    'Content-Length': Buffer.byteLength(asked.body ?? ''),
    ...asked.headers,
    ...(key !== undefined && { 'x-service-idempotency': key }),
  };
  return send(stack.url, { ...asked, path, method, headers });
}

/** @param scope the missing scope; undefined if it is unclear which one is missing */
function expectForbidden(answer: TestAnswer, scope?: string): void {
  const lacks = scope === undefined ? '' : `, scope="${scope}"`;
  const authenticate = `Bearer realm="oncegate", error="insufficient_scope"${lacks}`;
  expectProblem(answer, { status: 403, code: 'insufficient_scope', authenticate });
}

const JSON_TYPE = { 'Content-Type': 'application/json' };
const FORM = { 'Content-Type': 'application/x-www-form-urlencoded' };
const action = (name: string, more = '') =>
  `{"action":"${name}","amount":10,"bank_code":"058","account_number":"0123456789","reference":"r"${more}}`;
const WITHDRAW = action('withdraw');
const CHECKOUT = action('checkout');
const MULTIPART = '--x\r\nContent-Disposition: form-data; name="action"\r\n\r\nwithdraw\r\n--x--\r\n';

/** Requests whose operation the gateway cannot know. */
const unclear: [string, TestRequest][] = [
  ['a form inside JSON', { headers: FORM, body: action('checkout', ',"note":"&action=withdraw&x="') }],
  ['JSON with the content type of a form', { headers: FORM, body: CHECKOUT }],
  [
    'JSON without a content type, and with a form in it',
    { body: action('checkout', ',"note":"&action=withdraw&x="') },
  ],
  ...['utf-7', 'utf-16', 'utf-16le', 'utf-32', 'shift_jis'].map((charset): [string, TestRequest] => [
    `JSON in ${charset}`,
    { headers: { 'Content-Type': `application/json; charset=${charset}` }, body: CHECKOUT },
  ]),
  [
    'a selection in the query and in JSON',
    { path: '/v1/index.php?action=withdraw', headers: JSON_TYPE, body: CHECKOUT },
  ],
  [
    'the same selection in both',
    { path: '/v1/index.php?action=checkout', headers: JSON_TYPE, body: CHECKOUT },
  ],
  [
    'a selection in the query and in a form',
    { path: '/v1/index.php?action=withdraw', headers: FORM, body: 'action=checkout' },
  ],
  ['a gzip body', { headers: { ...JSON_TYPE, 'Content-Encoding': 'gzip' }, body: gzipSync(CHECKOUT) }],
  [
    'a body that is not gzip, with the content coding gzip',
    { headers: { ...JSON_TYPE, 'Content-Encoding': 'gzip' }, body: CHECKOUT },
  ],
  ['a multipart body', { headers: { 'Content-Type': 'multipart/form-data; boundary=x' }, body: MULTIPART }],
  ['XML', { headers: { 'Content-Type': 'text/xml' }, body: '<action>withdraw</action>' }],
  ['a member twice', { headers: JSON_TYPE, body: CHECKOUT.replace('{', '{"action":"withdraw",') }],
  [
    'a body over the limit',
    { headers: JSON_TYPE, body: action('checkout', `,"x":"${'x'.repeat(1_100_000)}"`) },
  ],
  ...[
    ...['+action', '%20action', 'action[]', 'action[0]', 'action%5B%5D', 'action%00', 'action%00x', 'Action'],
    ...[
      'action=checkout&+action',
      'action=checkout&action[]',
      'action=checkout;action',
      'x;action',
      '%u0061ction',
    ],
    ...['action=checkout&_method=PUT&x', 'action=checkout&action'],
  ].map((name): [string, TestRequest] => [
    `the form ${name}=withdraw`,
    { headers: FORM, body: `${name}=withdraw` },
  ]),
  ...['+action', 'action[]', 'action%00', 'x;action'].map((name): [string, TestRequest] => [
    `the query ${name}=withdraw`,
    { path: `/v1/index.php?${name}=withdraw` },
  ]),
  ...[
    'X-HTTP-Method-Override',
    'X-HTTP-Method',
    'X-Method-Override',
    'X-Original-URL',
    'X-Rewrite-URL',
  ].flatMap((name): [string, TestRequest][] => [
    [name, { headers: { ...JSON_TYPE, [name]: '/v1/index.php' }, body: CHECKOUT }],
    [`${name} on a GET`, { method: 'GET', path: '/v2/get_balance', headers: { [name]: 'POST' } }],
    [`${name} on an undeclared path`, { path: '/v3/echo', headers: { [name]: 'POST' } }],
  ]),
];

/** Requests that a backend may take for POST /v1/index.php. */
const lookalikes: [string, TestRequest][] = [
  ...[
    '/v1/',
    '/v1',
    '/v1/index',
    '/v1/index.php::$DATA',
    '/V1/INDEX.PHP',
    '/v1/index.php/',
    '/v1/index.php/x',
  ],
  ...[
    '/v1/index.php;x',
    '/v1;x/index.php',
    '/v1/index%2ephp',
    '/v1/index.php.',
    '/v1/index.php%20',
    '/v1/index.php5',
  ],
].map((path) => [path, { path, headers: JSON_TYPE, body: WITHDRAW }]);

const otherMethods: [string, TestRequest][] = [
  'PUT',
  'PATCH',
  'DELETE',
  'GET',
  'HEAD',
  'OPTIONS',
  'PROPFIND',
].map((method) => [method, { method, headers: JSON_TYPE, body: WITHDRAW }]);

describe('a restricted secret key', () => {
  afterEach(() => {
    expect(stack.sandbox.requests.total()).toBe(requests);
    expect(stack.sandbox.ledger.transactions()).toEqual([]);
  });

  it.each(unclear)('may not call what is unclear: %s', async (_name, asked) => {
    for (const scope of SCOPES) {
      expectForbidden(await ask(secretOf(scope), asked));
      expectForbidden(await ask(secretOf(scope), asked, randomUUID()));
    }
  });

  it.each(lookalikes)('needs all scopes of the path that %s resembles', async (_path, asked) => {
    expectForbidden(await ask(secretOf('balance'), asked), 'withdraw');
    expectForbidden(await ask(secretOf('undeclared'), asked, randomUUID()), 'withdraw');
    expectForbidden(await ask(secretOf('other'), asked), 'withdraw');
    expectForbidden(await ask(secretOf('withdraw'), asked), 'checkout');
    expectForbidden(await ask(secretOf('checkout'), asked), 'withdraw');
  });

  it.each(otherMethods)('needs all scopes of a declared path for %s', async (method, asked) => {
    for (const scope of ['balance', 'undeclared', 'other', 'checkout']) {
      const answer = await ask(secretOf(scope), asked);
      if (method === 'HEAD') expect(answer.status).toBe(403);
      else expectForbidden(answer, 'withdraw');
    }
  });

  it('needs the scope of the path for a method that is not declared', async () => {
    const asked = { path: '/v2/get_balance', headers: JSON_TYPE, body: WITHDRAW };
    for (const scope of ['undeclared', 'other', 'withdraw'])
      expectForbidden(await ask(secretOf(scope), asked), 'balance');
  });

  it('may call only what its scopes name', async () => {
    const calls: [string, TestRequest][] = [
      ['withdraw', { headers: JSON_TYPE, body: WITHDRAW }],
      ['withdraw', { headers: FORM, body: 'action=withdraw&amount=10' }],
      ['withdraw', { path: '/v1/index.php?action=withdraw' }],
      ['checkout', { headers: JSON_TYPE, body: CHECKOUT }],
      ['other', { headers: JSON_TYPE, body: action('refund') }],
      ['other', {}],
      ['balance', { method: 'GET', path: '/v2/get_balance' }],
      ['undeclared', { path: '/v3/echo' }],
      ['undeclared', { method: 'GET', path: '/v3/echo?action=withdraw' }],
    ];
    for (const [needed, asked] of calls)
      for (const scope of SCOPES.filter((other) => other !== needed))
        expectForbidden(await ask(secretOf(scope), asked), needed);
  });
});

describe('an unrestricted secret key', () => {
  it.each([...unclear, ...lookalikes, ...otherMethods])(
    'may call what is unclear: %s',
    async (_name, asked) => {
      const answer = await ask(UNRESTRICTED, asked);
      expect(stack.sandbox.requests.total()).toBe(requests + 1);
      expect(answer.headers['content-type'] ?? '').not.toContain('problem');

      if (Buffer.byteLength(asked.body ?? '') > 1_048_576) return;
      const key = randomUUID();
      await ask(UNRESTRICTED, asked, key);
      const retry = await ask(UNRESTRICTED, asked, key);
      expect(retry.headers['idempotent-replayed']).toBe('true');
      expect(stack.sandbox.requests.ofKey(key)).toBe(1);
      const { payouts, checkouts, charges } = stack.sandbox.ledger;
      expect(payouts({ key }) + checkouts({ key }) + charges({ key })).toBeLessThanOrEqual(1);
    },
  );
});
