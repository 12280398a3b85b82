import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import type { Duplex } from 'node:stream';
import { describe, expect, it, onTestFinished } from 'vitest';
import { httpBackend, rawBackend } from '../../support/backend.ts';
import { send, withdraw } from '../../support/client.ts';
import { answerBy, behindKeys, openKeyBackend, type UpstreamKeys } from '../../support/key-backend.ts';
import { metric } from '../../support/metrics.ts';
import { expectProblem } from '../../support/problem.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { head, Wire } from '../../support/wire.ts';

const REFUSED = {
  status: 401,
  code: 'invalid_key',
  authenticate: 'Bearer realm="oncegate", error="invalid_token"',
} as const;
const UNCHECKED = { status: 503, code: 'upstream_unreachable', retryAfter: 1 } as const;
const OVERLOADED = { status: 503, code: 'overloaded', retryAfter: 1 } as const;

/** Closed after the test. */
async function opened(opening: Promise<Stack>): Promise<Stack> {
  const stack = await opening;
  onTestFinished(() => stack.close());
  return stack;
}

async function open(keys: UpstreamKeys = {}) {
  const backend = await openKeyBackend();
  const stack = await opened(behindKeys(backend, keys));
  return { backend, stack, pay: (secret: string) => withdraw(stack.url, { secret, key: randomUUID() }) };
}

const probesOf = ({ adminUrl }: Stack, result: string) =>
  metric(adminUrl, 'oncegate_key_probes_total', { result });

describe('in front of the sandbox, without a list of keys', () => {
  const openSandboxStack = () => opened(openStack({ auth: { keys: { source: 'upstream' } } }));

  it('the backend says whose key it is, once', async () => {
    const { url, sandbox, log, adminUrl } = await openSandboxStack();
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
  });

  it('an unknown key is refused, and nothing but the probe is sent', async () => {
    const { url, sandbox } = await openSandboxStack();
    expectProblem(await withdraw(url, { key: 'order-1', secret: 'sk_nobody' }), REFUSED);
    expect(sandbox.requests.total()).toBe(1);
  });

  it('the backend pays once when it executes, then resets, and the key is rotated between the retries', async () => {
    const { url, sandbox } = await openSandboxStack();
    const pay = (secret: string) => withdraw(url, { key: 'order-1', secret, fault: 'execute-then-reset' });
    expectProblem(await pay('sk_sandbox_alpha'), { status: 502, code: 'outcome_unknown' });
    for (const secret of ['sk_sandbox_alpha', 'sk_sandbox_alpha_2'])
      expect((await pay(secret)).json()).toMatchObject({ status: 409, error: { code: 'outcome_unknown' } });
    expect(sandbox.ledger.transactions({ key: 'order-1' })).toHaveLength(1);
  });

  it('a known key gets its replays while the backend is away, and an unknown one 503', async () => {
    const keys = { source: 'upstream', acceptedMs: 1000 } as const;
    const { url, sandbox } = await opened(openStack({ auth: { keys } }));
    const first = await withdraw(url, { key: 'order-1' });
    await sandbox.close();
    const closedAtMs = performance.now();
    await until(() => performance.now() - closedAtMs > keys.acceptedMs);
    const replay = await withdraw(url, { key: 'order-1' });
    expect([replay.status, replay.headers['idempotent-replayed']]).toEqual([201, 'true']);
    expect(replay.body).toEqual(first.body);
    expectProblem(await withdraw(url, { key: 'order-1', secret: 'sk_nobody' }), UNCHECKED);
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

  it('that was refused is not probed again for refusedMs', async () => {
    const { backend, pay } = await open({ refusedMs: 3000 });
    for (let i = 0; i < 5; i++) expectProblem(await pay('sk_new'), REFUSED);
    expect(backend.probes).toEqual(['sk_new']);
    backend.keys.set('sk_new', 'M-NEW');
    await until(async () => (await pay('sk_new')).status === 201);
    expect(backend.probes).toEqual(['sk_new', 'sk_new']);
  });

  it('that looks like one of ours and is mistyped is not probed', async () => {
    const { backend, pay } = await open();
    expectProblem(await pay(`og_live_${'a'.repeat(32)}_000000`), REFUSED);
    expect(backend.probes).toEqual([]);
  });

  it('that is used is renewed in the background, and no request waits for it', async () => {
    const { backend, stack, pay } = await open({ acceptedMs: 3_600_000 });
    await pay('sk_a');
    let release = () => {};
    backend.answer = (res) => {
      release = () => answerBy('M-A', res);
    };
    // A reload makes every key due. The first request waits, as a request with an unknown key does.
    await stack.gateway.reloadKeys();
    const waiting = pay('sk_a');
    await until(() => backend.probes.length === 2);
    release();
    expect((await waiting).status).toBe(201);
    await stack.shutdown();

    const other = await opened(behindKeys(backend, { acceptedMs: 6000 }));
    backend.answer = undefined;
    const payThere = () => withdraw(other.url, { secret: 'sk_a', key: randomUUID() });
    await payThere();
    backend.answer = (res) => {
      release = () => answerBy('M-A', res);
    };
    await until(async () => (await payThere()).status === 201 && backend.probes.length === 4);
    // The probe has no answer yet.
    expect((await payThere()).status).toBe(201);
    expect(await probesOf(other, 'accepted')).toBe(1);
    release();
    await until(async () => (await probesOf(other, 'accepted')) === 2);
  });

  it('that the backend has revoked is refused after acceptedMs at the latest, and before if it is used', async () => {
    const { backend, pay } = await open({ acceptedMs: 1000 });
    await pay('sk_a');
    await pay('sk_b');
    backend.keys.clear();
    const revokedAtMs = performance.now();
    // The first one is used all the time, the second one only once.
    let lastPaidAtMs = 0;
    for (let sentAtMs = 0; (await pay('sk_a')).status === 201; sentAtMs = performance.now())
      lastPaidAtMs = sentAtMs;
    expect(lastPaidAtMs - revokedAtMs).toBeLessThan(1000);
    await until(() => performance.now() - revokedAtMs > 1000);
    expectProblem(await pay('sk_b'), REFUSED);
  });

  it('that the backend has revoked is refused at once after a reload', async () => {
    const { backend, stack, pay } = await open();
    await pay('sk_a');
    backend.keys.clear();
    expect((await pay('sk_a')).status).toBe(201);
    await stack.gateway.reloadKeys();
    expectProblem(await pay('sk_a'), REFUSED);
  });

  it('never changes its merchant: it is refused while the backend names another one', async () => {
    const { backend, stack, pay } = await open();
    await pay('sk_a');
    backend.keys.set('sk_a', 'M-OTHER');
    await stack.gateway.reloadKeys();
    expectProblem(await pay('sk_a'), UNCHECKED);
    expect(backend.requests).toEqual(['M-A']);
    expect(await probesOf(stack, 'merchant_changed')).toBe(1);
    expect(stack.log).toContainEqual(expect.objectContaining({ from: 'M-A', to: 'M-OTHER' }));
    // Also after the backend has refused it for a while.
    backend.keys.delete('sk_a');
    await stack.gateway.reloadKeys();
    expectProblem(await pay('sk_a'), REFUSED);
    backend.keys.set('sk_a', 'M-OTHER');
    await stack.gateway.reloadKeys();
    expectProblem(await pay('sk_a'), UNCHECKED);
    backend.keys.set('sk_a', 'M-A');
    await stack.gateway.reloadKeys();
    expect((await pay('sk_a')).status).toBe(201);
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

describe('a key that the backend cannot check gets 503, and nothing is sent, if the probe is answered with', () => {
  const json = (value: unknown, status = 200) =>
    [`HTTP/1.1 ${status} Status`, 'Connection: close', '', JSON.stringify(value)].join('\r\n');
  const code = (merchant_code: unknown) => json({ success: true, data: { merchant_code } });
  const text = (body: string, ...fields: string[]) =>
    ['HTTP/1.1 200 OK', 'Connection: close', ...fields, '', body].join('\r\n');

  it.each<[string, string | undefined]>([
    ['500', json({}, 500)],
    ['404', json({ data: { merchant_code: 'M-A' } }, 404)],
    ['429', json({}, 429)],
    ['a redirect', text('', 'Location: /').replace('200 OK', '302 Found')],
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
    ['two codes', text('{"data":{"merchant_code":"M-A","merchant_code":"M-B"}}')],
    ['success: false', json({ success: false, data: { merchant_code: 'M-A' } })],
    ['a page', text('<html>M-A</html>')],
    ['null', text('null')],
    ['an answer that is too large', code('M-A') + ' '.repeat(70_000)],
    ['half an answer', text('{"data":{"merchant_code":"M-A"}}', 'Content-Length: 1000')],
    ['bytes that are not HTTP', 'garbage\r\n\r\n'],
    ['nothing', ''],
    ['silence', undefined],
  ])('%s', async (_, answer) => {
    let requests = 0;
    const url = await rawBackend((socket) => {
      socket.once('data', () => {
        requests++;
        if (answer !== undefined) socket.end(answer);
      });
    });
    const stack = await opened(behindKeys({ url }, { timeoutMs: answer === undefined ? 2000 : 10_000 }));
    expectProblem(await withdraw(stack.url, { key: 'order-1', secret: 'sk_a' }), UNCHECKED);
    expect(requests).toBe(1);
    expect(await probesOf(stack, 'failed')).toBe(1);
  });
});

describe('while probes fail', () => {
  it('a known key is served for staleMs, and no request waits for a probe', async () => {
    const staleMs = 3500;
    const { backend, stack, pay } = await open({ staleMs, timeoutMs: 1000 });
    const knownAtMs = performance.now();
    await pay('sk_a');
    backend.answer = () => {};
    await stack.gateway.reloadKeys();
    // The first request waits for its probe, which fails. Later ones only begin one.
    expect((await pay('sk_a')).status).toBe(201);
    expect(await probesOf(stack, 'failed')).toBe(1);
    await until(async () => (await pay('sk_a')).status === 201 && backend.probes.length === 3);
    expect((await pay('sk_a')).status).toBe(201);
    expect(await probesOf(stack, 'failed')).toBe(1);
    await until(async () => (await pay('sk_a')).status === 503);
    expect(performance.now() - knownAtMs).toBeGreaterThan(staleMs);
    backend.answer = undefined;
    await until(async () => (await pay('sk_a')).status === 201);
  });

  it('a key whose probe failed is probed again after a second', async () => {
    const { backend, pay } = await open();
    backend.answer = (res) => res.writeHead(500).end();
    for (let i = 0; i < 5; i++) expectProblem(await pay('sk_a'), UNCHECKED);
    expect(backend.probes).toHaveLength(1);
    backend.answer = undefined;
    await until(async () => (await pay('sk_a')).status === 201);
    expect(backend.probes).toHaveLength(2);
  });
});

describe('a flood of invented keys', () => {
  it('neither floods the backend nor disturbs a known merchant', async () => {
    const { backend, stack, pay } = await open({
      maxProbes: 4,
      maxWaiting: 20,
      acceptedMs: 1000,
      maxKeys: 50,
    });
    await pay('sk_a');
    backend.answer = (res, req) => {
      if (req.headers.authorization === 'Bearer sk_a') answerBy('M-A', res);
      else setTimeout(() => answerBy(undefined, res), 20);
    };
    let flooding = true;
    const codes = new Map<string, number>();
    const flood = Array.from({ length: 60 }, async () => {
      while (flooding) {
        const { error } = (await pay(randomUUID())).json<{ error: { code: string } }>();
        codes.set(error.code, (codes.get(error.code) ?? 0) + 1);
      }
    });
    // Two renewals.
    while (backend.probes.filter((secret) => secret === 'sk_a').length < 3)
      expect((await pay('sk_a')).status).toBe(201);
    flooding = false;
    await Promise.all(flood);
    expect([...codes.keys()].sort()).toEqual(['invalid_key', 'overloaded']);
    // Two of them, and the renewal.
    expect(backend.mostAtOnce).toBeLessThanOrEqual(3);
    expect(await probesOf(stack, 'accepted')).toBe(3);
    expect(await probesOf(stack, 'overloaded')).toBeGreaterThan(0);
    expect(new Set(backend.requests)).toEqual(new Set(['M-A']));
  });

  it('begins no more than maxPerSecond probes', async () => {
    const maxPerSecond = 5;
    const { backend, pay } = await open({ maxPerSecond, timeoutMs: 1000 });
    const startedMs = performance.now();
    const answers = await Promise.all(Array.from({ length: 30 }, () => pay(randomUUID())));
    const refused = answers.filter(({ status }) => status === 401);
    // A second's worth at once, and as many while the others wait.
    expect(refused.length).toBeGreaterThanOrEqual(maxPerSecond);
    const elapsedS = (performance.now() - startedMs) / 1000;
    expect(backend.probes.length).toBeLessThanOrEqual(Math.ceil(maxPerSecond * (1 + elapsedS)));
    expect(backend.probes.length).toBeLessThan(answers.length);
    for (const answer of answers.filter(({ status }) => status !== 401)) expectProblem(answer, OVERLOADED);
  });
});

it('a merchant who leaves while the key is checked: nothing is sent', async () => {
  const { backend, stack } = await open();
  let release = () => {};
  backend.answer = (res) => {
    release = () => answerBy('M-A', res);
  };
  const leaving = new AbortController();
  const { signal } = leaving;
  const left = expect(withdraw(stack.url, { secret: 'sk_a', key: 'order-1', signal })).rejects.toThrow();
  await until(() => backend.probes.length === 1);
  leaving.abort();
  await left;
  await until(() => stack.log.some(({ outcome }) => outcome === 'merchant_gone'));
  release();
  await until(async () => (await probesOf(stack, 'accepted')) === 1);
  expect(await metric(stack.adminUrl, 'oncegate_in_flight')).toBe(0);
  expect(backend.requests).toEqual([]);
});

it('a shutdown answers the requests whose key is being checked', async () => {
  const { backend, stack, pay } = await open({ timeoutMs: 2000 });
  backend.answer = () => {};
  const [running, queued] = [pay('sk_a'), pay('sk_a')];
  await until(() => backend.probes.length === 1);
  await stack.shutdown();
  for (const answer of [await running, await queued]) expectProblem(answer, UNCHECKED);
});

it('a status that is not in `refused` refuses no key', async () => {
  const backend = await openKeyBackend();
  const keys = { source: 'upstream' as const, refused: [401] };
  const stack = await opened(openStack({ upstream: { url: backend.url }, auth: { keys } }));
  const pay = () => withdraw(stack.url, { secret: 'sk_a', key: randomUUID() });
  await pay();
  // A firewall that blocks the gateway, for example because of a flood of invented keys.
  backend.answer = (res) => res.writeHead(403).end();
  await stack.gateway.reloadKeys();
  expect((await pay()).status).toBe(201);
});

describe('a WebSocket', () => {
  const HANDSHAKE = [
    ...['Connection: Upgrade', 'Upgrade: websocket', 'Sec-WebSocket-Version: 13'],
    'Sec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==',
  ];

  it('whose client leaves while the key is checked leaves nothing behind', async () => {
    const { backend, stack } = await open();
    let release = () => {};
    backend.answer = (res) => {
      release = () => answerBy('M-A', res);
    };
    const wire = await Wire.open(stack.port);
    wire.write(head('GET /v3/ws', 'Authorization: Bearer sk_a', ...HANDSHAKE));
    await until(() => backend.probes.length === 1);
    wire.socket.resetAndDestroy();
    release();
    await until(async () => (await probesOf(stack, 'accepted')) === 1);
    await until(async () => (await metric(stack.adminUrl, 'oncegate_in_flight')) === 0);
    await until(async () => (await metric(stack.adminUrl, 'oncegate_streams')) === 0);
  });

  it('is opened with a key that must be checked first, and closed when the backend refuses the key', async () => {
    const sockets: Duplex[] = [];
    const keys = new Map([
      ['Bearer sk_a', 'M-A'],
      ['Bearer sk_b', 'M-B'],
    ]);
    const probes: string[] = [];
    const url = await httpBackend(
      ({ headers: { authorization = '' } }, res) => {
        probes.push(authorization);
        answerBy(keys.get(authorization), res);
      },
      (server) =>
        server.on('upgrade', (_req, socket) => {
          socket.write(
            'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n',
          );
          socket.on('data', (bytes) => socket.write(bytes));
          socket.on('end', () => socket.end()).on('error', () => {});
          sockets.push(socket);
        }),
    );
    const stack = await opened(behindKeys({ url }, { acceptedMs: 2000 }));
    const dial = async (secret: string) => {
      const wire = await Wire.open(stack.port);
      wire.write(head('GET /v3/ws', `Authorization: Bearer ${secret}`, ...HANDSHAKE));
      return { wire, status: (await wire.answer()).status };
    };
    expect((await dial('sk_nobody')).status).toBe(401);
    const [a, b] = [await dial('sk_a'), await dial('sk_b')];
    expect([a.status, b.status]).toEqual([101, 101]);
    const closed = once(sockets[0] as Duplex, 'close');
    keys.delete('Bearer sk_a');
    const revokedAtMs = performance.now();
    await Promise.all([a.wire.ended, closed]);
    expect(performance.now() - revokedAtMs).toBeLessThan(3000);
    // The other key is renewed without any request, and its session stays.
    const renewals = () => probes.filter((probe) => probe === 'Bearer sk_b').length;
    const before = renewals();
    await until(() => renewals() >= before + 2);
    b.wire.write('still here');
    await b.wire.hears('still here');
  });
});
