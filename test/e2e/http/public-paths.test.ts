import { once } from 'node:events';
import { createServer, type IncomingHttpHeaders } from 'node:http';
import { buffer } from 'node:stream/consumers';
import { describe, expect, it } from 'vitest';
import { WebSocket } from 'ws';
import { backendForFile } from '../../support/backend.ts';
import type { ConfigInput } from '../../support/config.ts';
import { temporaryFolder, writeKeys } from '../../support/config.ts';
import { eachRowInTurn } from '../../support/each-row.ts';
import { stackForFile, stackForTest } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import {
  ALPHA,
  ask,
  chunk,
  codeOf,
  HANDSHAKE,
  head,
  LAST_CHUNK,
  request as whole,
} from '../../support/wire.ts';

interface Got {
  line: string;
  headers: IncomingHttpHeaders;
  body: string;
}

/** What the backend has executed. */
const got: Got[] = [];

const PUBLIC: NonNullable<ConfigInput['auth']>['public'] = [
  { method: 'POST', path: '/callbacks/:bank' },
  { method: ['GET', 'HEAD'], path: '/Health' },
  { method: 'GET', path: '/v3/ws' },
  { method: 'OPTIONS', path: '/{*path}' },
];
const auth = (more: Partial<NonNullable<ConfigInput['auth']>> = {}): ConfigInput['auth'] => ({
  keys: { source: 'file', path: writeKeys(temporaryFolder()) },
  public: PUBLIC,
  ...more,
});

const server = createServer(async (req, res) => {
  const body = (await buffer(req)).toString();
  got.push({ line: `${req.method} ${req.url}`, headers: req.headers, body });
  res.end('executed');
});
const url = await backendForFile(server);
const stack = await stackForFile({ auth: auth(), upstream: { url } });

const answerTo = (bytes: string | Buffer) => ask(stack.port, bytes);

/** Expects that a request needs a secret key, and that the backend does not get it. */
async function expectRefused(bytes: string | Buffer): Promise<void> {
  const before = got.length;
  const answer = await answerTo(bytes);
  expect(answer.status).toBe(401);
  expect(codeOf(answer)).toBe('missing_credentials');
  expect(got.length).toBe(before);
}

/** The request as the backend got it. */
async function expectForwarded(bytes: string | Buffer): Promise<Got> {
  const before = got.length;
  expect((await answerTo(bytes)).status).toBe(200);
  expect(got.length).toBe(before + 1);
  return got.at(-1) as Got;
}

const PREFLIGHT = ['Origin: https://shop.test', 'Access-Control-Request-Method: POST'];

describe('a request on a public path', () => {
  it('needs no secret key, and has no merchant', async () => {
    const lines = stack.log.length;
    const { line, headers, body } = await expectForwarded(
      whole('POST /callbacks/first?id=1', ['X-Merchant-Code: M-ALPHA', 'X_Merchant_Code: M-ALPHA'], 'paid'),
    );
    expect([line, body]).toEqual(['POST /callbacks/first?id=1', 'paid']);
    expect(headers).not.toHaveProperty('x-merchant-code');
    expect(headers).not.toHaveProperty('authorization');
    expect(headers['x-forwarded-for']).toBe('127.0.0.1');
    // It keeps credentials that are not the gateway's.
    const basic = 'Basic YmFuazpwYXNz';
    const bank = await expectForwarded(whole('POST /callbacks/first', [`Authorization: ${basic}`], ''));
    expect(bank.headers.authorization).toBe(basic);
    const logged = await until(() => stack.log.slice(lines).find(({ msg }) => msg === 'request'));
    expect(logged).toMatchObject({
      operation: 'undeclared',
      outcome: 'passed_through',
      path: '/callbacks/:bank',
    });
    expect(logged).not.toHaveProperty('merchant');
    expect(await stack.gateway.metrics.text()).toContain(
      'oncegate_requests_total{operation="undeclared",outcome="passed_through"} 2',
    );
  });

  it.each(['strip', 'replace'] as const)(
    'does not get the gateway’s credentials under forward: %s',
    async (forward) => {
      const replaceWith = forward === 'replace' ? { replaceWith: 'Bearer of-the-gateway' } : {};
      const other = await stackForTest({
        auth: auth({ forward, ...replaceWith }),
        upstream: { url },
        // A public path is declared, though by no operation.
        idempotency: { undeclared: 'refuse' },
      });
      expect(
        (await ask(other.port, whole('POST /callbacks/first', ['Authorization: Bearer x'], ''))).status,
      ).toBe(200);
      expect(got.at(-1)?.headers).not.toHaveProperty('authorization');
    },
  );

  it('needs a valid secret key if it has credentials and an idempotency key, which then protects it', async () => {
    for (const [secret, code] of [
      ['Bearer sk_test_revoked', 'invalid_key'],
      ['Basic YmFuazpwYXNz', 'missing_credentials'],
    ]) {
      const fields = [`Authorization: ${secret}`, 'x-service-idempotency: b'];
      const before = got.length;
      const answer = await answerTo(whole('POST /callbacks/first', fields, 'paid'));
      expect(answer.status).toBe(401);
      expect(codeOf(answer)).toBe(code);
      expect(got.length).toBe(before);
    }
    const bytes = whole('POST /callbacks/first', [ALPHA, 'x-service-idempotency: b'], 'paid');
    expect((await expectForwarded(bytes)).headers['x-merchant-code']).toBe('M-ALPHA');
    const before = got.length;
    expect((await answerTo(bytes)).headers['idempotent-replayed']).toEqual(['true']);
    expect(got.length).toBe(before);
  });
});

describe('a request needs a secret key if', () => {
  it('it is not exactly a public one', async () => {
    const others: [string, string][] = [
      ['its letter case differs', 'GET /health'],
      ['it has a trailing slash', 'GET /Health/'],
      ['it is encoded', 'GET /%48ealth'],
      ['it has a path parameter', 'GET /Health;a=1'],
      ['it has another extension', 'GET /Health.html'],
      ['its method is another', 'PUT /Health'],
      ['it has more segments', 'POST /callbacks/first/second'],
      ['it has fewer segments', 'POST /callbacks'],
      ['its query overrides the method', 'POST /callbacks/first?_method=DELETE'],
      ['its query overrides it as in ASP.NET', 'POST /callbacks/first?X-HTTP-Method-Override=DELETE'],
    ];
    await eachRowInTurn(others, async ([, line]) => expectRefused(head(line, 'Content-Length: 0')));
  });

  it('a header may make it another request', async () => {
    for (const field of [
      ...['X-HTTP-Method-Override: DELETE', 'X-Original-URL: /v1/index.php', 'Cookie: _method=DELETE'],
    ])
      await expectRefused(whole('POST /callbacks/first', [field], '{"action":"withdraw"}'));
  });
});

describe('the body of a public request', () => {
  const typed = (type: string) => [`Content-Type: ${type}`];
  const FORM = typed('application/x-www-form-urlencoded');

  it('may not override the method', async () => {
    const bodies: [fields: string[], body: string][] = [
      [FORM, 'a=1&_method=DELETE'],
      [FORM, 'a=1&X-HTTP-Method-Override=DELETE'],
      [typed('application/json'), '{"_method":"DELETE"}'],
      [[], '_method=DELETE'],
      [[...typed(''), ...typed('image/png')], '_method=DELETE'],
      [[...FORM, 'Content-Encoding: gzip'], 'a'],
      [FORM, `a=${'x'.repeat(1_048_576)}`],
    ];
    for (const [fields, body] of bodies) await expectRefused(whole('POST /callbacks/first', fields, body));
  });

  it('arrives as it was sent, also if it was read before', async () => {
    const type = 'Content-Type: application/json';
    for (const body of ['{"payment_method":"card"}', '']) {
      const known = await expectForwarded(whole('POST /callbacks/first', [type], body));
      expect([known.body, known.headers['content-length']]).toEqual([body, `${body.length}`]);
    }
    const chunked = head('POST /callbacks/first', type, 'Transfer-Encoding: chunked');
    expect((await expectForwarded(chunked + chunk('{"a":') + chunk('1}') + LAST_CHUNK)).body).toBe('{"a":1}');
    const image = await expectForwarded(
      whole('POST /callbacks/first', typed('image/png'), '_method'.repeat(200_000)),
    );
    expect(image.body).toHaveLength(1_400_000);
  });
});

describe('a CORS preflight', () => {
  it('is public, on declared paths too', async () => {
    for (const path of [
      '/v1/index.php',
      '/v2/get_balance?a=1',
      '/v9/else?action=withdraw',
      '/V1/INDEX.PHP',
      '/',
    ]) {
      const { line, headers } = await expectForwarded(head(`OPTIONS ${path}`, ...PREFLIGHT));
      expect(line).toBe(`OPTIONS ${path}`);
      expect(headers).not.toHaveProperty('x-merchant-code');
    }
  });

  it.each([
    ['that is none', 'OPTIONS /v1/index.php', PREFLIGHT.slice(0, 1)],
    ['whose query could select an operation', 'OPTIONS /V1/INDEX.PHP/?action=withdraw', PREFLIGHT],
    ['with a cookie that could', 'OPTIONS /v1/index.php', [...PREFLIGHT, 'Cookie: action=withdraw']],
    ['with a body', 'OPTIONS /v1/index.php', [...PREFLIGHT, 'Content-Length: 2']],
    ['with credentials', 'OPTIONS /v1/index.php', [...PREFLIGHT, 'Authorization: Basic eDp5']],
    ['that overrides its method', 'OPTIONS /v1/index.php', [...PREFLIGHT, 'X-HTTP-Method-Override: POST']],
  ])('%s needs a secret key on a declared path', async (_, line, fields) =>
    expectRefused(head(line, ...fields)),
  );
});

describe('a WebSocket', () => {
  it('on a public path needs no secret key, and no other handshake is public', async () => {
    const sandboxed = await stackForTest({ auth: auth() });
    const ws = new WebSocket(`ws://127.0.0.1:${sandboxed.port}/v3/ws`, {
      headers: { 'X-Merchant-Code': 'M-ALPHA' },
    });
    await once(ws, 'open');
    ws.send('hello');
    expect(String((await once(ws, 'message'))[0])).toBe('hello');
    expect(sandboxed.handshakes.map(({ headers }) => headers['x-merchant-code'])).toEqual([undefined]);
    ws.close();
    await once(ws, 'close');
    for (const path of ['/v3/WS', '/v3/ws/', '/v3/wss'])
      expect((await ask(sandboxed.port, head(`GET ${path}`, ...HANDSHAKE))).status, path).toBe(401);
  });
});
