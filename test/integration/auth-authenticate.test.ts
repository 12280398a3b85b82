import { once } from 'node:events';
import { createServer } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { text } from 'node:stream/consumers';
import express, { type ErrorRequestHandler } from 'express';
import { describe, expect, onTestFinished, test, vi } from 'vitest';
import { Authenticator, authenticate } from '../../src/keys/authenticate.ts';
import { authorise } from '../../src/keys/authorise.ts';
import { parseKeyFile } from '../../src/keys/key-file.ts';
import { KeyIndex } from '../../src/keys/key-index.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { attachContext, type Identity, type RequestContext } from '../../src/lib/context.ts';
import { type Problem, sendProblem } from '../../src/lib/problem.ts';

const keys = KeyIndex.of(
  parseKeyFile(
    Buffer.from(`merchants:
      - code: M-1
        keys:
          - { id: old, dangerouslyPlainSecret: sk_old, expiresAt: 2026-02-01T00:00:00Z }
          - { id: new, dangerouslyPlainSecret: sk_new, notBefore: 2026-01-01T00:00:00Z }
          - { id: revoked, dangerouslyPlainSecret: sk_revoked, revokedAt: 2026-01-10T00:00:00Z }
          - { id: reader, dangerouslyPlainSecret: sk_reader, scopes: [balance] }
          - { id: payer, dangerouslyPlainSecret: sk_payer, scopes: [balance, withdraw] }
          - { id: elsewhere, dangerouslyPlainSecret: sk_elsewhere, scopes: [undeclared] }
          - { id: any, dangerouslyPlainSecret: sk_any, scopes: [balance, "*"] }
      - { code: M-2, keys: [{ id: old, dangerouslyPlainSecret: sk_other }] }`),
  ),
  undefined,
);
const clock = { ...systemClock, now: '', wallMs: () => Date.parse(clock.now), monotonicMs: () => 0 };
const authenticator = new Authenticator(keys, { realm: 'payments' }, clock);

function merchantOrCode(secret: string, now: string): string {
  clock.now = now;
  const result = authenticator.authenticate(['Authorization', `Bearer ${secret}`]);
  return result.kind === 'merchant'
    ? `${result.merchant.code}/${result.merchant.keyId}`
    : result.problem.code;
}

describe('a secret key', () => {
  test('identifies its merchant, which can have several keys', () => {
    expect(merchantOrCode('sk_old', '2026-01-15T00:00:00Z')).toBe('M-1/old');
    expect(merchantOrCode('sk_new', '2026-01-15T00:00:00Z')).toBe('M-1/new');
    expect(merchantOrCode('sk_other', '2026-01-15T00:00:00Z')).toBe('M-2/old');
    expect(merchantOrCode('sk_unknown', '2026-01-15T00:00:00Z')).toBe('invalid_key');
  });

  test.each([
    ['2025-12-31T23:59:59.999Z', 'M-1/old', 'invalid_key'],
    ['2026-01-01T00:00:00Z', 'M-1/old', 'M-1/new'],
    ['2026-01-31T23:59:59.999Z', 'M-1/old', 'M-1/new'],
    ['2026-02-01T00:00:00Z', 'invalid_key', 'M-1/new'],
  ])('can be rotated with an overlap: %s', (now, oldKey, newKey) => {
    expect([merchantOrCode('sk_old', now), merchantOrCode('sk_new', now)]).toEqual([oldKey, newKey]);
  });

  test('is refused from its revokedAt on', () => {
    expect(merchantOrCode('sk_revoked', '2026-01-09T23:59:59.999Z')).toBe('M-1/revoked');
    expect(merchantOrCode('sk_revoked', '2026-01-10T00:00:00Z')).toBe('invalid_key');
  });

  test.each(['sk_unknown', 'sk_old', 'sk_new', 'sk_revoked'])(
    '%s: authentication does one look-up and reads the clock once',
    (secret) => {
      const find = vi.fn((wanted: string) => keys.find(wanted));
      const wallMs = vi.fn(() => Date.parse(secret === 'sk_new' ? '2020-01-01' : '2030-01-01'));
      const counted = new Authenticator({ find }, { realm: 'payments' }, { ...systemClock, wallMs });
      expect(counted.authenticate(['Authorization', `Bearer ${secret}`]).kind).toBe('refused');
      expect([find.mock.calls.length, wallMs.mock.calls.length]).toEqual([1, 1]);
    },
  );
});

describe('a valid key in the cache', () => {
  const ENTRY = { digest: 'd', merchantCode: 'M-1', keyId: 'k', scopes: ['*'] };
  const always = { notBeforeMs: 0, expiresAtMs: 1000, revokedAtMs: Number.POSITIVE_INFINITY };

  function withCache() {
    const time = { nowMs: 1 };
    const entries = new Map([['valid', { ...ENTRY, ...always }]]);
    const find = vi.fn((secret: string) => entries.get(secret));
    const source = { find, generation: 0 };
    const options = [{ realm: 'payments' }, { ...systemClock, wallMs: () => time.nowMs }] as const;
    const authenticator = new Authenticator(source, ...options);
    const kindOf = (secret: string) => authenticator.authenticate(['Authorization', `Bearer ${secret}`]).kind;
    return { time, entries, find, source, kindOf };
  }

  test('is not looked up again; invalid keys are looked up each time', () => {
    const { find, kindOf } = withCache();
    expect(['valid', 'valid', 'invalid', 'invalid', 'valid'].map(kindOf)).toEqual([
      ...['merchant', 'merchant', 'refused', 'refused', 'merchant'],
    ]);
    expect(find.mock.calls.flat()).toEqual(['valid', 'invalid', 'invalid']);
  });

  test('is refused once it has expired, and is then looked up like any invalid key', () => {
    const { time, find, kindOf } = withCache();
    expect(kindOf('valid')).toBe('merchant');
    time.nowMs = 1000;
    expect([kindOf('valid'), kindOf('valid')]).toEqual(['refused', 'refused']);
    expect(find).toHaveBeenCalledTimes(2);
  });

  test('is removed from the cache when the key source changes', () => {
    const { entries, source, kindOf } = withCache();
    expect(kindOf('valid')).toBe('merchant');
    entries.clear();
    source.generation++;
    expect(kindOf('valid')).toBe('refused');
  });
});

const IDENTITY: Identity = {
  operation: {
    name: 'any',
    idempotency: { key: 'optional', inDoubt: 'hold', waitMs: 0, release: [], unknown: [] },
  },
  ...{ scopes: [], isDeclared: true, isProtected: true, keyRequired: false },
};

/** A server that authenticates, requires the scopes A and B for the path `/A+B`, and authorises. */
async function serve() {
  const contexts: RequestContext[] = [];
  const app = express().disable('x-powered-by');
  app.use((req, _res, next) => {
    const client = { address: '127.0.0.1', proxies: [] };
    const context = { requestId: 'r-1', startedAtMs: 0, client, upstreamMs: 0, waitMs: 0, done: true };
    contexts.push(context);
    attachContext(req, context);
    next();
  });
  app.use(authenticate(authenticator), (req, _res, next) => {
    const scopes = req.path.slice(1).split('+').filter(Boolean);
    const context = contexts.at(-1) as RequestContext;
    const unclear = scopes.length === 0 ? { unclear: 'its body is too large to be read' } : {};
    context.identity = { ...IDENTITY, scopes, ...unclear };
    next();
  });
  app.use(authorise({ realm: 'payments' }), (_req, res) => void res.json(contexts.at(-1)?.merchant));
  const refuse: ErrorRequestHandler = (refusal: Problem, _req, res, _next) => {
    (contexts.at(-1) as RequestContext).outcome = refusal.code;
    sendProblem(res, refusal, 'r-1');
  };
  app.use(refuse);
  const server = createServer(app).listen(0, '127.0.0.1');
  onTestFinished(() => void server.close());
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;

  /** Returns the raw answer without its Date header. */
  const send = async (path: string, ...lines: string[]): Promise<string> => {
    const socket = connect(port, '127.0.0.1');
    socket.write([`POST ${path} HTTP/1.1`, 'Host: x', 'Connection: close', ...lines, '', ''].join('\r\n'));
    return (await text(socket)).replace(/^Date: .*\r\n/m, '');
  };
  return { send, contexts };
}

describe('over HTTP', () => {
  test('every kind of invalid key gets the same answer, byte for byte', async () => {
    const { send, contexts } = await serve();
    const answers = new Set<string>();
    clock.now = '2025-06-01T00:00:00Z';
    answers.add(await send('/withdraw', 'Authorization: Bearer sk_new'));
    clock.now = '2026-06-01T00:00:00Z';
    for (const secret of ['sk_old', 'sk_revoked', 'sk_unknown', 'x', 'x'.repeat(512)]) {
      answers.add(await send('/withdraw', `Authorization: Bearer ${secret}`));
    }
    expect(answers.size).toBe(1);
    const [answer] = answers;
    expect(answer).toMatch(/^HTTP\/1.1 401 /);
    expect(answer).toContain('\r\nWWW-Authenticate: Bearer realm="payments", error="invalid_token"\r\n');
    expect(answer).toContain('"code":"invalid_key"');
    expect(contexts.map(({ outcome }) => outcome)).toEqual(Array(6).fill('invalid_key'));
  });

  test.each([
    ['sk_reader', '/withdraw', 'withdraw'],
    ['sk_reader', '/undeclared', 'undeclared'],
    ['sk_reader', '/other', 'other'],
    ['sk_reader', '/balance+withdraw', 'withdraw'],
    ['sk_payer', '/balance+withdraw+checkout', 'checkout'],
    ['sk_payer', '/with', 'with'],
    ['sk_elsewhere', '/other', 'other'],
  ])('%s on %s is answered 403 with the missing scope', async (secret, path, scope) => {
    const { send, contexts } = await serve();
    const answer = await send(path, `Authorization: Bearer ${secret}`);
    expect(answer).toMatch(/^HTTP\/1.1 403 /);
    const challenge = `Bearer realm="payments", error="insufficient_scope", scope="${scope}"`;
    expect(answer).toContain(`\r\nWWW-Authenticate: ${challenge}\r\n`);
    expect(answer).toContain('"code":"insufficient_scope"');
    expect(contexts[0]?.outcome).toBe('insufficient_scope');
  });

  test.each([
    ['sk_reader', '/balance'],
    ['sk_payer', '/balance+withdraw'],
    ['sk_elsewhere', '/undeclared'],
    ['sk_new', '/balance+withdraw+other'],
    ['sk_new', '/'],
    ['sk_any', '/withdraw'],
    ['sk_any', '/'],
  ])('%s may call %s', async (secret, path) => {
    clock.now = '2026-01-15T00:00:00Z';
    const { send } = await serve();
    expect(await send(path, `Authorization: Bearer ${secret}`)).toContain('HTTP/1.1 200 OK');
  });
});
