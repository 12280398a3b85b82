import { randomUUID } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { type TestAnswer, withdraw } from '../../support/client.ts';
import { temporaryFolder, writeKeys } from '../../support/config.ts';
import {
  ADMIN_TOKEN,
  adminPortOf,
  codeOf,
  consoleOptions,
  loggedIn,
  METRICS_TOKEN,
  SUPPORT_TOKEN,
  TestBrowser,
} from '../../support/console.ts';
import { rawConnection, rawExchange } from '../../support/raw.ts';
import { stackForFile } from '../../support/stack.ts';

const PEPPER = 'a pepper of the tests';
const STORE_KEY = 'ab'.repeat(32);
const LOOKUP_TOKEN = 'a token of the lookup';

const stack = await stackForFile({
  admin: consoleOptions,
  auth: { pepper: PEPPER, keys: { source: 'file', path: writeKeys(temporaryFolder()) } },
  store: { kind: 'sqlite', encryption: { keys: [{ id: 'e1', secret: STORE_KEY }] } },
  operations: [
    {
      name: 'withdraw',
      match: { method: 'POST', path: '/v1/index.php', where: { action: 'withdraw' } },
      idempotency: {
        inDoubt: 'lookup',
        lookup: {
          path: '/v1/lookup?merchant={merchant}&key={key}',
          headers: { authorization: `Bearer ${LOOKUP_TOKEN}` },
          completed: [200],
        },
      },
    },
  ],
});

const HEADERS = {
  'content-security-policy': expect.stringMatching(
    /^default-src 'none'; script-src 'self'; style-src 'self'; /,
  ),
  'x-content-type-options': 'nosniff',
  'x-frame-options': 'DENY',
  'referrer-policy': 'no-referrer',
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-resource-policy': 'same-origin',
};

/** Requests of each kind, without a session. */
const KINDS: [expected: string, path: string, method?: string][] = [
  ['302', '/'],
  ['302', '/console'],
  ['302', '/console?x=1'],
  ['405 method_not_allowed', '/', 'POST'],
  ['405 method_not_allowed', '/healthz', 'DELETE'],
  ['405 method_not_allowed', '/readyz', 'PUT'],
  ['405 method_not_allowed', '/metrics', 'POST'],
  ['405 method_not_allowed', '/console/', 'POST'],
  ['405 method_not_allowed', '/console/session', 'PUT'],
  ['405 method_not_allowed', '/records', 'DELETE'],
  ['405 method_not_allowed', '/records/x', 'POST'],
  ['405 method_not_allowed', '/records/x/resolve'],
  ['404 not_found', '/records/x/y'],
  ['404 not_found', '/nothing'],
  ['404 not_found', '/console/nothing'],
  ['404 not_found', '/console/index.html'],
  ['404 not_found', '/console/assets/'],
  ['404 not_found', '/console/assets/none-12345678.js'],
  ['404 not_found', '/console/assets/..%2findex.html'],
  ['404 not_found', '/console/assets/%2e%2e%2f%2e%2e%2fmain.js'],
  ['400 invalid', '/console/assets/%ff'],
  ['400 invalid', '/records/%zz'],
  ['401 not_logged_in', '/console/session'],
  ['401 not_logged_in', '/console/api/overview'],
  ['401 not_logged_in', '/console/api/doubts'],
  ['401 not_logged_in', '/console/api/nothing'],
];

describe('a request on the admin port', () => {
  it('without a session learns nothing, gets problem documents, and never HTML of Express', async () => {
    const browser = new TestBrowser(stack.adminUrl);
    for (const [expected, path, method = 'GET'] of KINDS) {
      const headers = path.startsWith('/records')
        ? { Authorization: `Bearer ${ADMIN_TOKEN}`, 'X-Console-Secret': undefined }
        : {};
      const answer = await browser.request(path, { method, headers });
      expect(codeOf(answer), `${method} ${path}`).toBe(expected);
      if (answer.status === 405) expect(answer.headers.allow, path).toMatch(/^(?:GET, HEAD|POST$)/);
      if (answer.status === 302) expect(answer.headers.location).toBe('/console/');
    }
    for (const { headers, body } of browser.answers) {
      expect(headers).toMatchObject(HEADERS);
      expect(headers).not.toHaveProperty('x-powered-by');
      expect(String(body)).not.toContain('<pre>');
    }
    const session = await loggedIn(stack.adminUrl);
    expect(codeOf(await session.request('api/nothing'))).toBe('404 not_found');
    const post = await session.request('api/overview', { json: {} });
    expect([codeOf(post), post.headers.allow]).toEqual(['405 method_not_allowed', 'GET, HEAD']);
  });

  it('that is not valid HTTP gets a problem document', async () => {
    const { port } = new URL(stack.adminUrl);
    const cases: [status: number, bytes: string][] = [
      [400, 'garbage\r\n\r\n'],
      [400, 'GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n'],
      [413, `GET / HTTP/1.1\r\nHost: a\r\nX: ${'x'.repeat(20_000)}\r\n\r\n`],
      [400, 'CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n'],
      [421, 'GET /console/ HTTP/1.1\r\nConnection: close\r\n\r\n'],
    ];
    for (const [status, bytes] of cases) {
      const [answer] = await rawExchange(Number(port), bytes);
      expect([answer?.status, answer?.headers['content-type']], bytes.slice(0, 40)).toEqual([
        status,
        'application/problem+json',
      ]);
    }
  });

  it('whose client disconnects at once does not end the process', async () => {
    const port = Number(new URL(stack.adminUrl).port);
    for (const bytes of [
      'CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n',
      'garbage\r\n\r\n',
      'POST /console/session',
    ])
      for (let i = 0; i < 10; i++) {
        const socket = await rawConnection(port);
        socket.write(bytes);
        // Sometimes before the request was read, sometimes behind it.
        if (i % 2 === 0) await new Promise((resolve) => setImmediate(resolve));
        socket.resetAndDestroy();
      }
    const [answer] = await rawExchange(
      port,
      'GET /healthz HTTP/1.1\r\nHost: a\r\nExpect: nothing\r\nConnection: close\r\n\r\n',
    );
    expect(answer?.status).toBe(200);
  });

  it('does not take the open files from merchants', async () => {
    const { url } = await adminPortOf(stack);
    const sockets = await Promise.all(
      Array.from({ length: 1010 }, () => rawConnection(Number(new URL(url).port))),
    );
    await expect.poll(() => sockets.filter(({ closed }) => closed).length).toBe(10);
    for (const socket of sockets) socket.destroy();
  });

  it('leads to a list of the paths when the console is off', async () => {
    for (const [admin, why] of [
      [{ console: false }, 'admin.console: false'],
      [{ token: undefined, tokens: [] }, 'admin.token or admin.tokens'],
    ] as const) {
      const { url } = await adminPortOf(stack, undefined, admin);
      const browser = new TestBrowser(url);
      const { status, headers, body } = await browser.request('/');
      expect([status, headers['content-type']]).toEqual([200, 'text/plain; charset=utf-8']);
      for (const path of ['/healthz', '/readyz', '/metrics']) expect(String(body)).toContain(`\n${path} `);
      for (const path of ['/console/', '/console/session', '/console/api/overview']) {
        const answer = await browser.request(path);
        expect([codeOf(answer), String(answer.body)]).toEqual([
          '404 console_off',
          expect.stringContaining(why),
        ]);
      }
      expect(codeOf(await browser.login())).toBe('404 console_off');
    }
  });
});

it('no answer has a secret of the configuration, of a merchant, or of another session', async () => {
  const key = randomUUID();
  await withdraw(stack.url, { key });
  const answers: TestAnswer[] = [];
  const sessions: string[] = [];
  for (const token of [ADMIN_TOKEN, SUPPORT_TOKEN]) {
    const browser = await loggedIn(stack.adminUrl, token);
    for (const [, path, method = 'GET'] of KINDS) await browser.request(path, { method });
    const { recordId } = await browser.ask<{ recordId: string }>('/records/find', {
      json: { merchant: 'M-ALPHA', key },
    });
    for (const path of [`/records/${recordId}`, `/records/${recordId}/body`]) await browser.request(path);
    const login = browser.answers.shift();
    sessions.push(String(login?.headers['set-cookie']).split(/[=;]/)[1] as string, browser.secret);
    answers.push(...browser.answers);
  }
  const tokens = [ADMIN_TOKEN, SUPPORT_TOKEN, METRICS_TOKEN, LOOKUP_TOKEN];
  const secrets = [...tokens, PEPPER, STORE_KEY, 'sk_sandbox', ...sessions];
  const texts = answers.map(({ body, rawHeaders }) => `${rawHeaders.join('\n')}\n${body}`);
  const logged = stack.log.map((line) => JSON.stringify(line));
  for (const secret of secrets)
    expect([...texts, ...logged].filter((text) => text.includes(secret))).toEqual([]);
  expect(texts.length).toBeGreaterThan(50);
});
