import { randomUUID } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { send, type TestAnswer, type TestRequest } from '../../support/client.ts';
import { temporaryFolder } from '../../support/config.ts';
import { eachRowInTurn } from '../../support/each-row.ts';
import { expectNothingSent } from '../../support/nothing-sent.ts';
import { expectProblem } from '../../support/problem.ts';
import { stackForFile } from '../../support/stack.ts';

const SCOPES = ['balance', 'checkout', 'withdraw', 'other', 'undeclared', 'payment'];
const UNRESTRICTED = 'sk_sandbox_alpha';
const secretOf = (scope: string) => `sk_test_only_${scope}`;

function keyFile(): string {
  const path = join(temporaryFolder(), 'keys.yaml');
  const restricted = SCOPES.map((scope) => ({
    ...{ id: `only-${scope}`, dangerouslyPlainSecret: secretOf(scope), scopes: [scope] },
  }));
  const alpha = [{ id: 'all', dangerouslyPlainSecret: UNRESTRICTED }, ...restricted];
  const charlie = [{ id: 'charlie', dangerouslyPlainSecret: 'sk_sandbox_charlie' }];
  const merchants = [
    { code: 'M-ALPHA', keys: alpha },
    { code: 'M-CHARLIE', keys: charlie },
  ];
  writeFileSync(path, stringify({ merchants }));
  return path;
}

const at = (method: string, path: string, where?: object) => ({ match: { method, path, ...where } });
const index = (action: string) => at('POST', '/v1/index.php', { where: { action } });
const stack = await stackForFile({
  auth: { keys: { source: 'file', path: keyFile() } },
  operations: [
    { name: 'balance', ...at('GET', '/v2/get_balance') },
    { name: 'withdraw', ...index('withdraw') },
    { name: 'checkout', ...index('checkout') },
    { name: 'payment', ...at('POST', '/v1/payments/:id') },
  ],
});

function ask(secret: string, asked: TestRequest, key?: string): Promise<TestAnswer> {
  const headers = {
    Authorization: `Bearer ${secret}`,
    'Content-Length': Buffer.byteLength(asked.body ?? ''),
    ...asked.headers,
    ...(key !== undefined && { 'x-service-idempotency': key }),
  };
  return send(stack.url, { path: '/v1/index.php', method: 'POST', ...asked, headers });
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
const FORM_INSIDE = action('checkout', ',"note":"&action=withdraw&x="');

/** Requests whose operation the gateway cannot know: one of each kind. */
const unclear: [string, TestRequest][] = [
  ['a form inside JSON', { headers: FORM, body: FORM_INSIDE }],
  ['a selection in the query and in JSON', { path: '/v1/index.php?action=checkout', body: CHECKOUT }],
  ['a gzip body', { headers: { ...JSON_TYPE, 'Content-Encoding': 'gzip' }, body: gzipSync(CHECKOUT) }],
  [
    'a body over the limit',
    { headers: JSON_TYPE, body: action('checkout', `,"x":"${'x'.repeat(1_100_000)}"`) },
  ],
  ['a cookie that PHP reads', { headers: { ...JSON_TYPE, Cookie: 'action=withdraw' }, body: CHECKOUT }],
  ['another method by a header', { path: '/v3/echo', headers: { 'X-HTTP-Method-Override': 'POST' } }],
];

/** Requests that a backend may take for POST /v1/index.php. */
const resembling: [string, TestRequest][] = [
  ...['/v1/', '/V1/INDEX.PHP', '/v1/index.php/x', '/v1/index%2ephp', '/index.php/v1/index.php'].map(
    (path): [string, TestRequest] => [path, { path, headers: JSON_TYPE, body: WITHDRAW }],
  ),
  ...['PUT', 'GET', 'OPTIONS', 'PROPFIND'].map((method): [string, TestRequest] => [
    method,
    { method, headers: JSON_TYPE, body: WITHDRAW },
  ]),
];

it('without valid credentials every path is refused, declared or not', async () => {
  await expectNothingSent(stack, async () => {
    for (const path of ['/', '/v3/echo', '/v2/get_balance', '/_sandbox/ledger', '/favicon.ico'])
      for (const method of ['GET', 'HEAD', 'OPTIONS'])
        expect((await send(stack.url, { path, method })).status).toBe(401);
  });
});

describe('a restricted secret key', () => {
  it('may not call what is unclear', async () => {
    await expectNothingSent(stack, () =>
      eachRowInTurn(unclear, async ([, asked]) => {
        for (const scope of SCOPES) expectForbidden(await ask(secretOf(scope), asked));
        expectForbidden(await ask(secretOf('withdraw'), asked, randomUUID()));
      }),
    );
  });

  it('needs all scopes of the path that a request resembles', async () => {
    await expectNothingSent(stack, () =>
      eachRowInTurn(resembling, async ([, asked]) => {
        for (const scope of ['balance', 'undeclared', 'other', 'checkout'])
          expectForbidden(await ask(secretOf(scope), asked), 'withdraw');
        expectForbidden(await ask(secretOf('withdraw'), asked, randomUUID()), 'checkout');
      }),
    );
  });

  it('may not send a form that overrides the method', async () => {
    await expectNothingSent(stack, async () => {
      const form = { path: '/v1/payments/1', headers: FORM, body: 'amount=1&_method=DELETE' };
      expectForbidden(await ask(secretOf('payment'), form));
      expectForbidden(await ask(secretOf('payment'), form, randomUUID()));
    });
  });
});
