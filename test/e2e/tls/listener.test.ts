import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { type ConnectionOptions, connect, type TLSSocket } from 'node:tls';
import { describe, expect, onTestFinished, test } from 'vitest';
import { WebSocket } from 'ws';
import { Authority } from '../../support/certificates.ts';
import { BEARER, send, withdraw } from '../../support/client.ts';
import type { MoreConfig } from '../../support/config.ts';
import { metric } from '../../support/metrics.ts';
import { closed, rawConnection } from '../../support/raw.ts';
import { type Stack, stackForFile, stackForTest } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, codeOf, head, Wire } from '../../support/wire.ts';

const authority = new Authority();
const files = authority.issue();
const ca = authority.caBytes;

const openTls = (more: MoreConfig = {}, minVersion?: 'TLSv1.3') =>
  stackForFile({ ...more, listen: { tls: { ...files, ...(minVersion && { minVersion }) } } });

const limits = { headerTimeoutMs: 1500, headerBytes: 1024, inFlight: 10, answerTimeoutMs: 400 };
const [stack, strict] = await Promise.all([openTls(), openTls({ limits }, 'TLSv1.3')]);

const failed = (of: Stack, reason: string) =>
  metric(of.adminUrl, 'oncegate_tls_handshakes_failed_total', { reason });

/** The beginning of a client's first record: 512 bytes of a handshake, by TLS 1.2. */
const HELLO = Buffer.concat([Buffer.from('1603010200010001fc0303', 'hex'), Buffer.alloc(506)]);

async function shakenHands(options: ConnectionOptions): Promise<TLSSocket> {
  const socket = connect({ port: stack.port, host: '127.0.0.1', ca, ...options });
  onTestFinished(() => void socket.destroy());
  await once(socket, 'secureConnect');
  return socket.on('error', () => {});
}

describe('a merchant over TLS', () => {
  test('reaches the backend with X-Forwarded-Proto: https, whatever a client says that is no trusted proxy', async () => {
    const seen = async (fields: Record<string, string>) => {
      const headers = { ...BEARER, ...fields };
      const echo = (await send(stack.url, { path: '/v3/echo', headers, ca })).json<{
        rawHeaders: [string, string][];
      }>();
      return echo.rawHeaders.flatMap(([name, value]) => (/^x-forwarded-proto$/i.test(name) ? [value] : []));
    };
    expect(await seen({})).toEqual(['https']);
    expect(await seen({ 'X-Forwarded-Proto': 'http' })).toEqual(['https']);
  });

  test('uses WebSockets', async () => {
    const ws = new WebSocket(`wss://127.0.0.1:${stack.port}/v3/ws`, {
      ca,
      headers: { authorization: 'Bearer sk_sandbox_alpha' },
    });
    onTestFinished(() => ws.terminate());
    await once(ws, 'open');
    ws.send('hello');
    expect(String((await once(ws, 'message'))[0])).toBe('hello');
  });
});

describe('the handshake', () => {
  test('offers HTTP/1.1 only', async () => {
    const both = await shakenHands({ ALPNProtocols: ['h2', 'http/1.1'] });
    expect(both.alpnProtocol).toBe('http/1.1');
    await expect(shakenHands({ ALPNProtocols: ['h2'] })).rejects.toThrow(/alert/);
  });

  test('refuses versions below minVersion', async () => {
    await expect(shakenHands({ port: strict.port, maxVersion: 'TLSv1.2' })).rejects.toThrow(/alert|version/);
    expect((await shakenHands({ port: strict.port })).getProtocol()).toBe('TLSv1.3');
    const old = { minVersion: 'TLSv1.1', maxVersion: 'TLSv1.1', ciphers: 'DEFAULT@SECLEVEL=0' } as const;
    await expect(shakenHands(old)).rejects.toThrow(/alert|version/);
    expect((await shakenHands({ maxVersion: 'TLSv1.2' })).getProtocol()).toBe('TLSv1.2');
  });

  test.each(['TLSv1.2', 'TLSv1.3'] as const)('resumes no session: %s', async (maxVersion) => {
    const first = await shakenHands({ maxVersion });
    const sessions: Buffer[] = [];
    first.on('session', (session) => sessions.push(session));
    first.write(head('GET /v2/get_balance', ALPHA));
    await once(first, 'data');
    const session = sessions.at(-1) ?? first.getSession();
    const again = await shakenHands({ maxVersion, ...(session && { session }) });
    expect(again.isSessionReused()).toBe(false);
  });

  test('is not repeated within a connection', async () => {
    const socket = await shakenHands({ maxVersion: 'TLSv1.2' });
    const error = await new Promise<Error | null>((resolve) => {
      socket.once('error', resolve);
      socket.once('close', () => resolve(new Error('closed')));
      socket.renegotiate({ rejectUnauthorized: true }, resolve);
    });
    expect(error?.message).toMatch(/renegotiation|closed/);
  });

  test('must be over within limits.headerTimeoutMs, however slowly its bytes arrive', async () => {
    const hasty = await stackForTest({ listen: { tls: files }, limits: { headerTimeoutMs: 400 } });
    const startedMs = performance.now();
    const [silent, dripping] = [await Wire.open(hasty.port), await Wire.open(hasty.port)];
    let sent = 0;
    const drip = setInterval(() => dripping.write(HELLO.subarray(sent, ++sent)), 50);
    onTestFinished(() => clearInterval(drip));
    await Promise.all([silent.ended, dripping.ended]);
    expect(performance.now() - startedMs).toBeLessThan(3000);
    expect(sent).toBeLessThan(HELLO.length);
    await until(async () => (await failed(hasty, 'timeout')) === 2);
  });

  test('that fails is counted by its reason, and closes its connection without an answer', async () => {
    const before = { refused: await failed(stack, 'refused'), gone: await failed(stack, 'disconnected') };
    const plain = await Wire.open(stack.port);
    await plain.write(head('GET /v2/get_balance', ALPHA)).ended;
    expect(plain.rest).not.toContain('HTTP/');
    (await Wire.open(stack.port)).socket.destroy();
    await until(async () => (await failed(stack, 'refused')) === before.refused + 1);
    await until(async () => (await failed(stack, 'disconnected')) === before.gone + 1);
    const lines = stack.log.filter(({ msg }) => msg === 'a TLS handshake failed');
    expect(lines.length).toBeGreaterThanOrEqual(2);
    for (const line of lines) expect(line).toMatchObject({ level: 20, reason: expect.any(String) });
  });

  test('counts as a connection before it is over', async () => {
    const small = await stackForTest({ listen: { tls: files }, limits: { connections: 2 } });
    const [one, two] = [await Wire.open(small.port), await Wire.open(small.port)];
    await (await Wire.open(small.port)).ended;
    expect(await metric(small.adminUrl, 'oncegate_connections_refused_total')).toBe(1);
    for (const { socket } of [one, two]) socket.destroy();
    const balance = () => send(small.url, { path: '/v2/get_balance', headers: BEARER, ca });
    await until(() =>
      balance()
        .then(({ status }) => status === 200)
        .catch(() => false),
    );
  });
});

test('bytes that are no TLS, after the handshake, end their connection only', async () => {
  const raw = await rawConnection(stack.port);
  await shakenHands({ socket: raw });
  raw.write(Buffer.alloc(64, 'x'));
  await closed(raw);
  expect((await withdraw(stack.url, { key: randomUUID(), ca })).status).toBe(201);
});

test('a merchant who does not read its answers is disconnected', async () => {
  const idler = await Wire.open(strict.port, ca);
  idler.socket.pause();
  idler.write(head('GET /v3/echo').repeat(12_000));
  const inFlight = async () => await metric(strict.adminUrl, 'oncegate_in_flight');
  await until(async () => (await inFlight()) > 0);
  await until(async () => (await inFlight()) === 0);
});

// Node's parser loses bytes when a TLS socket is paused: see http-server.ts.
test('a merchant who pipelines more than it reads gets every answer, and no byte of a request is lost', async () => {
  const socket = await shakenHands({});
  const chunks: Buffer[] = [];
  socket.on('data', (bytes: Buffer) => chunks.push(bytes)).pause();
  // More answers than the buffers of both systems hold.
  const requests = 8000;
  socket.write(head('GET /v3/echo').repeat(requests - 1) + head('GET /v3/echo', ALPHA, 'Connection: close'));
  await until(async () => (await metric(stack.adminUrl, 'oncegate_in_flight')) > 0);
  socket.resume();
  await once(socket, 'end');
  const statuses = Buffer.concat(chunks)
    .toString('latin1')
    .match(/HTTP\/1\.1 \d+/g);
  expect(statuses).toHaveLength(requests);
  expect(statuses?.filter((line) => line !== 'HTTP/1.1 401')).toEqual(['HTTP/1.1 200']);
});

test('a head that is too slow or too large is answered, and its connection closed', async () => {
  const slow = await Wire.open(strict.port, ca);
  const late = await slow.write('GET /v2/get_balance HTTP/1.1\r\n').answer();
  expect([late.status, codeOf(late)]).toEqual([408, 'request_timeout']);
  const large = await Wire.open(strict.port, ca);
  expect((await large.write(head('GET /', `X-Large: ${'x'.repeat(2000)}`)).answer()).status).toBe(431);
  const many = await Wire.open(stack.port, ca);
  const lines = Array.from({ length: 250 }, (_, i) => `a${i}: 1`);
  expect((await many.write(head('GET /', ...lines)).answer()).status).toBe(431);
});
