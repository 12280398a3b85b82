import { randomUUID } from 'node:crypto';
import { copyFileSync, readFileSync, renameSync } from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import { pipeline } from 'node:stream';
import { createServer, type TlsOptions } from 'node:tls';
import { describe, expect, onTestFinished, test } from 'vitest';
import { openBackend } from '../../support/backend.ts';
import { Authority, type CertificateFiles, replaceFiles } from '../../support/certificates.ts';
import { BEARER, send, withdraw } from '../../support/client.ts';
import { type ConfigInput, type MoreConfig, temporaryFolder, testConfig } from '../../support/config.ts';
import { metric } from '../../support/metrics.ts';
import { gatewayForTest, openSandbox, readiness, type TestGateway } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { echoingWebSockets } from '../../support/web-sockets.ts';
import { codeOf, HANDSHAKE, head, Wire } from '../../support/wire.ts';

const authority = new Authority();
const other = new Authority();
const server = authority.issue();
const client = authority.issue();

type UpstreamTls = NonNullable<ConfigInput['upstream']>['tls'];

const sandbox = await openSandbox({ onUpgrade: echoingWebSockets() });

const bytesOf = ({ cert, key }: CertificateFiles) => ({ cert: readFileSync(cert), key: readFileSync(key) });

/** The sandbox behind TLS, on a port of its own. Counts the connections that came through the handshake. */
async function tlsBackend(options: TlsOptions): Promise<{ url: string; accepted(): number }> {
  let accepted = 0;
  const server = createServer(options, (secure) => {
    accepted++;
    const plain = connect(sandbox.port, '127.0.0.1');
    pipeline(secure, plain, secure, () => plain.destroy());
  });
  server.on('tlsClientError', () => {});
  const { url, close } = await openBackend(server);
  onTestFinished(close);
  return { url: url.replace('http:', 'https:'), accepted: () => accepted };
}

/** A gateway with these options in front of such a backend. */
async function behind(options: TlsOptions, tls: UpstreamTls, more: MoreConfig = {}) {
  const { url, accepted } = await tlsBackend(options);
  const upstream = { tls, connectTimeoutMs: 5000, ...more.upstream };
  const gateway = await gatewayForTest(testConfig(temporaryFolder(), url, { ...more, upstream }));
  return { gateway, accepted };
}

const booked = () => sandbox.ledger.transactions().length;
const upstreamCheck = async (gateway: TestGateway) => (await readiness(gateway)).check('upstream');

describe('a backend that asks for a certificate', () => {
  const mutual: TlsOptions = { ...bytesOf(server), ca: authority.caBytes, requestCert: true };

  test.each(['TLSv1.2', 'TLSv1.3'] as const)('executes, streams and upgrades over %s', async (maxVersion) => {
    const { gateway } = await behind({ ...mutual, maxVersion }, { ca: authority.ca, ...client });
    const [key, before] = [randomUUID(), booked()];
    const lost = await withdraw(gateway.url, { key, fault: 'execute-then-reset' });
    expect([lost.status, codeOf(lost)]).toEqual([502, 'outcome_unknown']);
    expect((await withdraw(gateway.url, { key })).status).toBe(409);
    expect((await withdraw(gateway.url, { key: randomUUID() })).status).toBe(201);
    expect(booked() - before).toBe(2);
    expect((await send(gateway.url, { path: '/v3/echo', headers: BEARER })).status).toBe(200);
    const wire = await Wire.open(gateway.port);
    const handshake = head('GET /v3/ws', `Authorization: ${BEARER.Authorization}`, ...HANDSHAKE);
    // A text frame, with a mask of zeros, which comes back.
    expect((await wire.write(`${handshake}\x81\x85\0\0\0\0hello`).answer()).status).toBe(101);
    await wire.hears('\x81\x05hello');
    expect(await upstreamCheck(gateway)).toMatchObject({ ok: true });
  });

  test('is asked what became of a key in doubt', async () => {
    const lookup = { path: '/v1/transactions?merchant={merchant}&key={key}', firstAfterMs: 50 };
    const { gateway } = await behind(
      mutual,
      { ca: authority.ca, ...client },
      {
        operations: [
          {
            name: 'withdraw',
            match: { method: 'POST', path: '/v1/index.php' },
            idempotency: { inDoubt: 'lookup', lookup },
          },
        ],
      },
    );
    await withdraw(gateway.url, { key: 'looked-up', fault: 'execute-then-reset' });
    const lookups = (labels = {}) => metric(gateway.adminUrl, 'oncegate_lookups_total', labels);
    await until(async () => (await lookups()) > 0);
    expect(await lookups({ result: 'failed' })).toBe(0);
  });

  test('is asked whose secret key it is, with the certificate and by its own probe connections', async () => {
    const keys = { source: 'upstream' } as const;
    const { gateway, accepted } = await behind(mutual, { ca: authority.ca, ...client }, { auth: { keys } });
    const before = booked();
    const answers = await Promise.all(
      Array.from({ length: 3 }, () => withdraw(gateway.url, { key: 'probed' })),
    );
    expect(answers.map(({ status }) => status)).toEqual([201, 201, 201]);
    expect(booked() - before).toBe(1);
    const probes = (result: string) => metric(gateway.adminUrl, 'oncegate_key_probes_total', { result });
    expect(await probes('accepted')).toBe(1);
    expect((await withdraw(gateway.url, { secret: 'sk_unknown' })).status).toBe(401);
    expect([await probes('refused'), await probes('failed')]).toEqual([1, 0]);
    expect(accepted()).toBeGreaterThan(0);
  });

  test.each<[string, UpstreamTls]>([
    ['the gateway shows none', { ca: authority.ca }],
    ['the backend has one of another authority', { ca: other.ca, ...client }],
  ])('cannot be asked whose secret key it is if %s: 503, never 401', async (_, tls) => {
    const { gateway } = await behind({ ...mutual, maxVersion: 'TLSv1.2' }, tls, {
      auth: { keys: { source: 'upstream' } },
    });
    const before = sandbox.requests.total();
    const answer = await withdraw(gateway.url, { key: randomUUID() });
    expect([answer.status, codeOf(answer)]).toEqual([503, 'upstream_unreachable']);
    expect(await metric(gateway.adminUrl, 'oncegate_key_probes_total', { result: 'failed' })).toBe(1);
    // Neither the secret key nor the payout has left the gateway.
    expect(sandbox.requests.total() - before).toBe(0);
    expect(JSON.stringify(gateway.log)).not.toContain('sk_sandbox_alpha');
  });

  test('and gets none, over TLS 1.2: nothing was sent, and the key is released', async () => {
    const { gateway, accepted } = await behind({ ...mutual, maxVersion: 'TLSv1.2' }, { ca: authority.ca });
    const before = booked();
    for (let attempt = 0; attempt < 2; attempt++) {
      const answer = await withdraw(gateway.url, { key: 'released-12' });
      expect([answer.status, codeOf(answer)]).toEqual([502, 'upstream_unreachable']);
    }
    expect(await upstreamCheck(gateway)).toMatchObject({ ok: false });
    expect([accepted(), booked()]).toEqual([0, before]);
  });

  // Under TLS 1.3 the client has finished the handshake, and may have sent the request, before the backend refuses it.
  test('and gets none, over TLS 1.3: the key is in doubt, unless nothing was sent', async () => {
    const { gateway } = await behind({ ...mutual, minVersion: 'TLSv1.3' }, { ca: authority.ca });
    const before = booked();
    const answer = await withdraw(gateway.url, { key: 'doubtful-13' });
    expect([answer.status, codeOf(answer)]).toEqual([502, 'outcome_unknown']);
    const retry = await withdraw(gateway.url, { key: 'doubtful-13' });
    expect([retry.status, codeOf(retry)]).toEqual([409, 'outcome_unknown']);
    expect(booked()).toBe(before);
    const streamed = await send(gateway.url, { path: '/v3/echo', headers: BEARER });
    expect([streamed.status, codeOf(streamed)]).toEqual([502, 'outcome_unknown']);
    expect(await upstreamCheck(gateway)).toMatchObject({ ok: false });
  });
});

describe('a backend whose certificate is refused: nothing is sent, and the key is released:', () => {
  test.each<[string, () => CertificateFiles, UpstreamTls]>([
    ['another authority', () => server, { ca: other.ca }],
    ['no authority is configured', () => server, undefined],
    ['expired', () => authority.issueExpired(), { ca: authority.ca }],
    ['another host', () => authority.issue({ names: ['DNS:elsewhere.test'] }), { ca: authority.ca }],
    ['another serverName', () => server, { ca: authority.ca, serverName: 'payments.internal' }],
  ])('%s', async (_why, files, tls) => {
    const { gateway } = await behind(bytesOf(files()), tls);
    const total = sandbox.requests.total();
    for (let attempt = 0; attempt < 2; attempt++) {
      const answer = await withdraw(gateway.url, { key: 'refused' });
      expect([answer.status, codeOf(answer)]).toEqual([502, 'upstream_unreachable']);
    }
    const streamed = await send(gateway.url, { path: '/v3/echo', headers: BEARER });
    expect([streamed.status, codeOf(streamed)]).toEqual([502, 'upstream_unreachable']);
    expect(await upstreamCheck(gateway)).toMatchObject({ ok: false });
    expect(sandbox.requests.total()).toBe(total);
  });
});

test('serverName is the name that the certificate must have', async () => {
  const { gateway } = await behind(bytesOf(authority.issue({ names: ['DNS:payments.internal'] })), {
    ca: authority.ca,
    serverName: 'payments.internal',
  });
  expect((await withdraw(gateway.url, { key: 'named' })).status).toBe(201);
  expect((await send(gateway.url, { path: '/v3/echo', headers: BEARER })).status).toBe(200);
  expect(await upstreamCheck(gateway)).toMatchObject({ ok: true });
});

test('new files of authority and certificate are used without a restart, and a released key is then paid once', async () => {
  const folder = temporaryFolder();
  const files = { ca: join(folder, 'ca.pem'), cert: join(folder, 'own.pem'), key: join(folder, 'own.key') };
  copyFileSync(other.ca, files.ca);
  replaceFiles(files, other.issue());
  const { gateway } = await behind({ ...bytesOf(server), ca: authority.caBytes, requestCert: true }, files);
  const before = booked();
  expect(codeOf(await withdraw(gateway.url, { key: 'reloaded' }))).toBe('upstream_unreachable');
  replaceFiles(files, client);
  copyFileSync(authority.ca, `${files.ca}.new`);
  renameSync(`${files.ca}.new`, files.ca);
  await until(async () => (await upstreamCheck(gateway))?.ok);
  expect((await withdraw(gateway.url, { key: 'reloaded' })).status).toBe(201);
  expect((await send(gateway.url, { path: '/v3/echo', headers: BEARER })).status).toBe(200);
  expect(booked() - before).toBe(1);
});

test('no connection resumes a session with a backend whose authority is no longer trusted', async () => {
  const ca = join(temporaryFolder(), 'ca.pem');
  copyFileSync(authority.ca, ca);
  // Each request takes a connection of its own.
  const { gateway } = await behind(bytesOf(server), { ca }, { upstream: { keepAliveMs: 1 } });
  const streamed = async () => (await send(gateway.url, { path: '/v3/echo', headers: BEARER })).status;
  expect([await streamed(), await streamed()]).toEqual([200, 200]);
  const before = sandbox.requests.total();
  const reloads = () => metric(gateway.adminUrl, 'oncegate_certificate_reloads_total', { result: 'ok' });
  copyFileSync(other.ca, `${ca}.new`);
  renameSync(`${ca}.new`, ca);
  await until(async () => (await reloads()) === 1);
  expect([await streamed(), sandbox.requests.total() - before]).toEqual([502, 0]);
});
