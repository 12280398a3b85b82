import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import type { Duplex } from 'node:stream';
import { describe, expect, it } from 'vitest';
import { backendForFile, rawBackend } from '../../support/backend.ts';
import { send, type TestAnswer, withdraw } from '../../support/client.ts';
import type { ConfigInput, MoreConfig } from '../../support/config.ts';
import { eachRowInTurn } from '../../support/each-row.ts';
import { answerBy, openKeyBackend } from '../../support/key-backend.ts';
import { metric } from '../../support/metrics.ts';
import { movableClock } from '../../support/movable-clock.ts';
import { expectProblem } from '../../support/problem.ts';
import { closed } from '../../support/raw.ts';
import { type Stack, stackForFile, stackForTest } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { acceptUpgrade } from '../../support/web-sockets.ts';
import { codeOf, HANDSHAKE, head, Wire } from '../../support/wire.ts';

const REFUSED = {
  status: 401,
  code: 'invalid_key',
  authenticate: 'Bearer realm="oncegate", error="invalid_token"',
} as const;
const UNCHECKED = { status: 503, code: 'upstream_unreachable', retryAfter: 1 } as const;

type UpstreamKeys = Omit<Extract<ConfigInput['auth'], object>['keys'], 'source'>;
/** Without a list of keys. */
const upstreamAuth = (keys: UpstreamKeys = {}) => ({ keys: { source: 'upstream' as const, ...keys } });

const HOUR_MS = 3_600_000;

async function open(keys: UpstreamKeys = {}, more: MoreConfig = {}) {
  const [backend, clock] = [await openKeyBackend(), movableClock()];
  const auth = upstreamAuth({ acceptedMs: HOUR_MS, ...keys });
  const stack = await stackForTest({ ...more, upstream: { url: backend.url }, auth }, {}, clock);
  const pay = (secret: string) => withdraw(stack.url, { secret, key: randomUUID() });
  return { backend, clock, stack, pay };
}

const probesOf = ({ adminUrl }: Stack, result: string) =>
  metric(adminUrl, 'oncegate_key_probes_total', { result });

const acceptedMs = 1000;
const clock = movableClock();
const stack = await stackForFile({ auth: upstreamAuth({ acceptedMs }) }, {}, clock);

describe('in front of the sandbox, without a list of keys', () => {
  it('the backend says whose key it is, once, and an unknown key is refused', async () => {
    const { url, sandbox, log, adminUrl } = stack;
    for (const key of ['order-1', 'order-2'])
      expect((await withdraw(url, { key, secret: 'sk_sandbox_bravo' })).status).toBe(201);
    expect(sandbox.requests.ofPath('GET /v2/get_balance')).toBe(1);
    expect(sandbox.ledger.transactions({ merchant: 'M-BRAVO' })).toHaveLength(2);
    const executed = await until(() => {
      const lines = log.filter(({ outcome }) => outcome === 'executed');
      return lines.length === 2 ? lines : undefined;
    });
    for (const line of executed) expect(line).toMatchObject({ merchant: 'M-BRAVO', keyId: 'upstream' });
    expect(await metric(adminUrl, 'oncegate_secret_keys')).toBe(1);
    const before = sandbox.requests.total();
    expectProblem(await withdraw(url, { key: 'order-1', secret: 'sk_nobody' }), REFUSED);
    // Only the probe was sent.
    expect(sandbox.requests.total()).toBe(before + 1);
  });

  it('a known key gets its replays while the backend is away, and an unknown one 503', async () => {
    const { url, sandbox } = stack;
    const first = await withdraw(url, { key: 'away-1' });
    await sandbox.close();
    clock.pass(acceptedMs + 1);
    const replay = await withdraw(url, { key: 'away-1' });
    expect([replay.status, replay.headers['idempotent-replayed']]).toEqual([201, 'true']);
    expect(replay.body).toEqual(first.body);
    expectProblem(await withdraw(url, { key: 'away-1', secret: 'sk_another' }), UNCHECKED);
  });
});

describe('a secret key', () => {
  it('is probed once for fifty requests at once', async () => {
    const { backend, pay } = await open();
    const answers = await Promise.all(Array.from({ length: 50 }, () => pay('sk_a')));
    expect(answers.map(({ status }) => status)).toEqual(Array(50).fill(201));
    expect(backend.probes).toEqual(['sk_a']);
    expect(backend.requests).toEqual(Array(50).fill('M-A'));
  });

  it('that the backend has revoked is refused after acceptedMs at the latest, and before if it is used', async () => {
    const { backend, clock, pay } = await open();
    for (const secret of ['sk_a', 'sk_b']) await pay(secret);
    backend.keys.clear();
    clock.pass(HOUR_MS / 2 + 1);
    // It is used, and so its renewal is refused.
    expect((await pay('sk_a')).status).toBe(201);
    await until(async () => (await pay('sk_a')).status === 401);
    clock.pass(HOUR_MS / 2);
    expectProblem(await pay('sk_b'), REFUSED);
  });

  it('that the backend has revoked is refused, also if the backend says so without a length', async () => {
    const { backend, clock, pay } = await open();
    await pay('sk_a');
    backend.answer = (res) => res.socket?.end('HTTP/1.0 401 No\r\nContent-Type: text/html\r\n\r\n<p>no</p>');
    clock.pass(HOUR_MS + 1);
    for (const secret of ['sk_a', 'sk_nobody']) expectProblem(await pay(secret), REFUSED);
  });

  it('that the backend has revoked is refused after a reload, also if an earlier probe still runs', async () => {
    const { backend, stack, pay } = await open();
    const { promise: answered, resolve: answerFirst } = Promise.withResolvers<void>();
    backend.answer = (res) => void answered.then(() => answerBy('M-A', res));
    const before = pay('sk_a');
    await until(() => backend.probes.length === 1);
    backend.answer = (res) => answerBy(undefined, res);
    await stack.gateway.reloadKeys();
    const after = pay('sk_a');
    await until(async () => (await metric(stack.adminUrl, 'oncegate_in_flight')) === 2);
    answerFirst();
    expectProblem(await after, REFUSED);
    expectProblem(await before, REFUSED);
    expect(backend.requests).toEqual([]);
  });

  it('never changes its merchant: it is refused while the backend names another one', async () => {
    const { backend, stack, pay } = await open();
    const payAs = async (merchant: string | undefined): Promise<TestAnswer> => {
      if (merchant === undefined) backend.keys.delete('sk_a');
      else backend.keys.set('sk_a', merchant);
      await stack.gateway.reloadKeys();
      return await pay('sk_a');
    };
    await payAs('M-A');
    expectProblem(await payAs('M-OTHER'), UNCHECKED);
    expect(backend.requests).toEqual(['M-A']);
    expect(await probesOf(stack, 'merchant_changed')).toBe(1);
    expect(stack.log).toContainEqual(expect.objectContaining({ from: 'M-A', to: 'M-OTHER' }));
    // Also after the backend has refused it for a while.
    expectProblem(await payAs(undefined), REFUSED);
    expectProblem(await payAs('M-OTHER'), UNCHECKED);
    expect((await payAs('M-A')).status).toBe(201);
    expect(backend.requests).toEqual(['M-A', 'M-A']);
  });

  it('is in no log line, no metric and no check', async () => {
    const { backend, stack, pay } = await open();
    await pay('sk_a');
    await pay('sk_secret_nobody');
    backend.answer = (res) => res.writeHead(500).end('sk_secret_failing');
    await pay('sk_secret_failing');
    const { body } = await send(stack.adminUrl, { path: '/readyz' });
    const checks = body.toString();
    expect(checks).toContain('1 key is known; the last probe failed: GET answered 500');
    const said = [JSON.stringify(stack.log), checks, await stack.gateway.metrics.text()].join();
    expect(said).toContain('the backend cannot check a secret key');
    expect(said).not.toMatch(/sk_(?:a\b|secret)/);
  });
});

it('a key that the backend cannot check gets 503, and nothing is sent', async () => {
  // With a length: an answer without an end of its own fails for that.
  const text = (body: string, bytes = Buffer.byteLength(body)) =>
    ['HTTP/1.1 200 OK', 'Connection: close', `Content-Length: ${bytes}`, '', body].join('\r\n');
  const json = (value: unknown, status = 200) =>
    text(JSON.stringify(value)).replace('200 OK', `${status} Status`);
  const data = (merchant_code: unknown) => ({ success: true, data: { merchant_code } });
  const code = (merchant_code: unknown) => json(data(merchant_code));
  const answers: [string, string | undefined][] = [
    ['500', json({}, 500)],
    ['404', json({ data: { merchant_code: 'M-A' } }, 404)],
    ['429', json({}, 429)],
    ['a redirect', text('').replace('200 OK', '302 Found\r\nLocation: /')],
    ['204', 'HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n'],
    ['no merchant code', json({ success: true, data: {} })],
    ['a merchant code elsewhere', json({ success: true, merchant_code: 'M-A' })],
    ['data that is a list', json({ data: [{ merchant_code: 'M-A' }] })],
    ['a number', code(12)],
    ['an empty code', code('')],
    ['a code with a space', code('M A')],
    ['a code with a line break', code('M\r\nX-Merchant-Code: B')],
    ['a code that is not ASCII', code('M-Ä')],
    ['a code that is too long', code('M'.repeat(65))],
    [
      'no length and another type',
      text('{"data":{"merchant_code":"M-A"}}').replace(/Content-Length.*\r\n/, ''),
    ],
    ['two codes', text('{"data":{"merchant_code":"M-A","merchant_code":"M-B"}}')],
    // A cache may ignore Authorization: the answer may be to the key of another merchant.
    ['an answer from a cache', text('{"data":{"merchant_code":"M-A"}}').replace('\r\n', '\r\nAge: 7\r\n')],
    ['a refusal from a cache', 'HTTP/1.1 401 Unauthorized\r\nAge: 7\r\nContent-Length: 0\r\n\r\n'],
    ['success: false', json({ success: false, data: { merchant_code: 'M-A' } })],
    ['a page', text('<html>M-A</html>')],
    ['null', text('null')],
    ['an answer that is too large', text(JSON.stringify(data('M-A')) + ' '.repeat(70_000))],
    ['half an answer', text('{"data":{"merchant_code":"M-A"}}', 1000)],
    ['bytes that are not HTTP', 'garbage\r\n\r\n'],
    ['nothing', ''],
    ['silence', undefined],
  ];
  let [answer, requests]: [string | undefined, number] = ['', 0];
  const url = await rawBackend((socket) =>
    socket.once('data', () => {
      requests++;
      if (answer !== undefined) socket.end(answer);
    }),
  );
  const stack = await stackForTest({ upstream: { url }, auth: upstreamAuth({ timeoutMs: 600 }) });
  await eachRowInTurn(answers, async (row) => {
    [answer, requests] = [row[1], 0];
    // Each with a key of its own, because one whose probe has failed is not probed again at once.
    expectProblem(
      await withdraw(stack.url, { key: 'order-1', secret: `sk_${answers.indexOf(row)}` }),
      UNCHECKED,
    );
    expect(requests).toBe(1);
  });
  expect(await probesOf(stack, 'failed')).toBe(answers.length);
});

it('a key whose probe failed is probed again after a second', async () => {
  const { backend, clock, pay } = await open();
  backend.answer = (res) => res.writeHead(500).end();
  for (let i = 0; i < 5; i++) expectProblem(await pay('sk_a'), UNCHECKED);
  expect(backend.probes).toHaveLength(1);
  backend.answer = undefined;
  clock.pass(1001);
  expect((await pay('sk_a')).status).toBe(201);
  expect(backend.probes).toHaveLength(2);
});

it('a flood of invented keys neither floods the backend nor disturbs a known merchant', async () => {
  const { backend, clock, stack, pay } = await open({ maxProbes: 4, maxWaiting: 20, maxKeys: 50 });
  await pay('sk_a');
  backend.answer = (res, req) => {
    if (req.headers.authorization === 'Bearer sk_a') answerBy('M-A', res);
    else setTimeout(() => answerBy(undefined, res), 20);
  };
  let flooding = true;
  const codes = new Set<string>();
  const flood = Array.from({ length: 60 }, async () => {
    while (flooding) codes.add(codeOf(await pay(randomUUID())));
  });
  // Two renewals.
  const probed = () => backend.probes.filter((secret) => secret === 'sk_a').length;
  for (const renewals of [2, 3]) {
    clock.pass(HOUR_MS / 2 + 1);
    while (probed() < renewals) expect((await pay('sk_a')).status).toBe(201);
    await until(async () => (await probesOf(stack, 'accepted')) === renewals);
  }
  flooding = false;
  await Promise.all(flood);
  expect([...codes].sort()).toEqual(['invalid_key', 'overloaded']);
  // Two of them, and the renewal.
  expect(backend.mostAtOnce).toBeLessThanOrEqual(3);
  expect(await probesOf(stack, 'overloaded')).toBeGreaterThan(0);
  expect(new Set(backend.requests)).toEqual(new Set(['M-A']));
});

const PROXY = '127.0.0.2';

it('invented keys from one IPv6 network do not shut out valid ones from others, right after a start', async () => {
  const listen = { host: '127.0.0.1', port: 0, trustedProxies: [PROXY] };
  const { backend, stack, pay } = await open({ maxProbes: 4, maxWaiting: 60, timeoutMs: 3000 }, { listen });
  backend.answer = (res, { headers: { authorization = '' } }) => {
    const [, merchant] = /^Bearer sk_valid_(\d+)$/.exec(authorization) ?? [];
    setTimeout(() => answerBy(merchant && `M-${merchant}`, res), 20);
  };
  let flooding = true;
  const invented = { method: 'POST', path: '/v1/index.php', localAddress: PROXY };
  const flood = Array.from({ length: 100 }, async () => {
    while (flooding)
      await send(stack.url, {
        ...invented,
        headers: {
          authorization: `Bearer ${randomUUID()}`,
          // One machine usually has all addresses of its /64.
          'X-Forwarded-For': `2001:db8::${randomUUID().slice(0, 4)}:1`,
        },
      });
  });
  await until(async () => ((await probesOf(stack, 'overloaded')) ?? 0) > 0);
  const valid = await Promise.all(Array.from({ length: 20 }, (_, i) => pay(`sk_valid_${i}`)));
  flooding = false;
  await Promise.all(flood);
  expect(valid.map(({ status }) => status)).toEqual(Array(20).fill(201));
});

it('a merchant who leaves while the key is checked: nothing is sent', async () => {
  const { backend, stack } = await open();
  let answer = () => {};
  backend.answer = (res) => {
    answer = () => answerBy('M-A', res);
  };
  const leaving = new AbortController();
  const { signal } = leaving;
  const left = expect(withdraw(stack.url, { secret: 'sk_a', key: 'order-1', signal })).rejects.toThrow();
  await until(() => backend.probes.length === 1);
  leaving.abort();
  await left;
  await until(() => stack.log.some(({ outcome }) => outcome === 'merchant_gone'));
  answer();
  await until(async () => (await probesOf(stack, 'accepted')) === 1);
  expect(await metric(stack.adminUrl, 'oncegate_in_flight')).toBe(0);
  expect(backend.requests).toEqual([]);
});

it('a shutdown answers the requests whose key is being checked', async () => {
  const { backend, stack, pay } = await open({ timeoutMs: 300 });
  backend.answer = () => {};
  const [running, queued] = [pay('sk_a'), pay('sk_a')];
  await until(() => backend.probes.length === 1);
  await stack.shutdown();
  for (const answer of [await running, await queued]) expectProblem(answer, UNCHECKED);
});

it('a status that is not in `refused` refuses no key', async () => {
  const { backend, stack, pay } = await open({ refused: [401] });
  await pay('sk_a');
  // A firewall that blocks the gateway, for example because of a flood of invented keys.
  backend.answer = (res) => res.writeHead(403).end();
  await stack.gateway.reloadKeys();
  expect((await pay('sk_a')).status).toBe(201);
});

const keys = new Map<string, string>();
const sockets: Duplex[] = [];
let held: (() => void) | undefined;
const checking = createServer(({ headers: { authorization = '' } }, res) => {
  const answer = () => answerBy(keys.get(authorization), res);
  if (authorization === 'Bearer sk_slow') held = answer;
  else answer();
});
checking.on('upgrade', (_req, socket) => {
  acceptUpgrade(socket);
  sockets.push(socket.on('data', (bytes) => socket.write(bytes)));
});
const renewing = movableClock();
// Only a refusal closes a session.
const auth = upstreamAuth({ acceptedMs: HOUR_MS, staleMs: 24 * HOUR_MS });
const upgrading = await stackForFile(
  { upstream: { url: await backendForFile(checking) }, auth },
  {},
  renewing,
);

describe('a WebSocket', () => {
  const dial = async (secret: string) => {
    const wire = await Wire.open(upgrading.port);
    return wire.write(head('GET /v3/ws', `Authorization: Bearer ${secret}`, ...HANDSHAKE));
  };

  it('whose client leaves while the key is checked leaves nothing behind', async () => {
    keys.set('Bearer sk_slow', 'M-A');
    const wire = await dial('sk_slow');
    await until(() => held);
    wire.socket.resetAndDestroy();
    held?.();
    await until(async () => (await probesOf(upgrading, 'accepted')) === 1);
    for (const open of ['oncegate_in_flight', 'oncegate_streams'])
      await until(async () => (await metric(upgrading.adminUrl, open)) === 0);
  });

  it('is opened with a key that must be checked first, and closed when the backend refuses the key', async () => {
    keys.set('Bearer sk_a', 'M-A').set('Bearer sk_b', 'M-B');
    expect((await (await dial('sk_nobody')).answer()).status).toBe(401);
    const before = sockets.length;
    const a = await dial('sk_a');
    expect((await a.answer()).status).toBe(101);
    const b = await dial('sk_b');
    expect((await b.answer()).status).toBe(101);
    const accepted = await probesOf(upgrading, 'accepted');
    const atBackendClosed = closed(sockets[before] as Duplex);
    keys.delete('Bearer sk_a');
    // The sessions renew their keys without any request. The session with the other key stays.
    for (const renewals of [1, 2]) {
      renewing.pass(HOUR_MS / 2 + 1);
      await until(async () => (await probesOf(upgrading, 'accepted')) === accepted + renewals);
    }
    await Promise.all([a.ended, atBackendClosed]);
    b.write('still here');
    await b.hears('still here');
  });
});
