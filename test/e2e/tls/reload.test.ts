import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { chmodSync, readFileSync, writeFileSync } from 'node:fs';
import { Agent } from 'node:https';
import { connect } from 'node:tls';
import { expect, onTestFinished, test } from 'vitest';
import { type CertificateReload, WatchedCertificate } from '../../../src/lib/certificate.ts';
import { systemClock } from '../../../src/lib/clock.ts';
import { Authority, type CertificateFiles, replaceFiles } from '../../support/certificates.ts';
import { withdraw } from '../../support/client.ts';
import { eachRowInTurn } from '../../support/each-row.ts';
import { metric } from '../../support/metrics.ts';
import { readiness, type Stack, stackForTest } from '../../support/stack.ts';
import { until } from '../../support/until.ts';

const authority = new Authority();
const ca = authority.caBytes;
const DAY_MS = 24 * 3_600_000;

const open = (files: CertificateFiles) => stackForTest({ listen: { tls: files } });

/** The serial number of the certificate that a new connection gets. */
async function served({ port }: Pick<Stack, 'port'>): Promise<string> {
  const socket = connect({ port, host: '127.0.0.1', ca, rejectUnauthorized: false });
  await once(socket, 'secureConnect');
  const { serialNumber } = socket.getPeerCertificate();
  socket.destroy();
  return serialNumber;
}

const reloads = ({ adminUrl }: Pick<Stack, 'adminUrl'>, result: string) =>
  metric(adminUrl, 'oncegate_certificate_reloads_total', { certificate: 'listen', result });

async function warnings(gateway: Pick<Stack, 'adminUrl'>): Promise<string[]> {
  const certificates = (await readiness(gateway)).check('certificates');
  expect(certificates?.ok).toBe(true);
  return certificates?.warnings ?? [];
}

test('a new certificate is used from the next connection on, and open connections stay', async () => {
  const files = authority.issue();
  const stack = await open(files);
  const agent = new Agent({ keepAlive: true, maxSockets: 1, ca });
  onTestFinished(() => agent.destroy());
  expect((await withdraw(stack.url, { key: randomUUID(), agent })).status).toBe(201);
  // SIGHUP does this, and nothing has changed.
  await stack.gateway.reloadKeys();
  expect(await reloads(stack, 'ok')).toBe(1);
  const before = await served(stack);
  const untilMs = Math.floor((Date.now() + 50 * DAY_MS) / 1000) * 1000;
  replaceFiles(files, authority.issue({ untilMs }));
  await until(async () => (await served(stack)) !== before);
  expect((await withdraw(stack.url, { key: randomUUID(), agent })).status).toBe(201);
  expect(await reloads(stack, 'ok')).toBeGreaterThanOrEqual(2);
  const expires = 'oncegate_certificate_expires_timestamp_seconds';
  expect(await metric(stack.adminUrl, expires, { certificate: 'listen' })).toBe(untilMs / 1000);
});

test('files that cannot be used leave the old certificate in use, with a log line, a count and a warning', async () => {
  const files = authority.issue();
  const stack = await open(files);
  const before = await served(stack);
  const good = readFileSync(files.cert);
  writeFileSync(files.cert, 'hello');
  await until(async () => (await reloads(stack, 'refused')) > 0);
  expect(await served(stack)).toBe(before);
  expect((await withdraw(stack.url, { key: randomUUID(), ca })).status).toBe(201);
  const why = /holds no certificate/;
  expect((await warnings(stack)).join()).toMatch(why);
  const line = stack.log.findLast(({ msg }) => /a new certificate is refused/.test(String(msg)));
  expect(line).toMatchObject({ level: 50, certificate: 'listen', reason: expect.stringMatching(why) });
  expect(JSON.stringify(stack.log)).not.toContain('PRIVATE KEY');
  writeFileSync(files.cert, good);
  await until(async () => !(await warnings(stack)).join().includes('refused'));
});

test('no half written, foreign or outdated files are used', async () => {
  const files = authority.issue();
  const good = { cert: readFileSync(files.cert), key: readFileSync(files.key) };
  const told: CertificateReload[] = [];
  const onReload = (reload: CertificateReload) => void told.push(reload);
  const watched = await WatchedCertificate.open({
    ...{ name: 'listen.tls', paths: files, clock: systemClock, onReload },
  });
  onTestFinished(() => watched.close());
  const broken: [string, () => void, RegExp][] = [
    [
      'a key of another certificate',
      () => writeFileSync(files.key, readFileSync(authority.issue().key)),
      /does not belong/,
    ],
    [
      'half a certificate',
      () => writeFileSync(files.cert, good.cert.subarray(0, 400)),
      /holds no certificate|ends within/,
    ],
    [
      'a chain whose second certificate is cut off',
      () => writeFileSync(files.cert, Buffer.concat([good.cert, ca.subarray(0, 300)])),
      /ends within a certificate/,
    ],
    ['half a key', () => writeFileSync(files.key, good.key.subarray(0, 100)), /no private key/],
    ['an expired certificate', () => replaceFiles(files, authority.issueExpired()), /expired at/],
    [
      'a certificate of tomorrow',
      () => replaceFiles(files, authority.issue({ fromMs: Date.now() + DAY_MS })),
      /not valid before/,
    ],
    [
      'a file that is too large',
      () => writeFileSync(files.cert, Buffer.alloc(2_000_000, 'a')),
      /larger than/,
    ],
  ];
  await eachRowInTurn(broken, async ([, breakThem, why]) => {
    breakThem();
    await watched.reload();
    expect(told.at(-1)).toEqual({ ok: false, error: expect.stringMatching(why) });
    expect(watched.warnings().join()).toMatch(why);
    expect(watched.files).toEqual(good);
    writeFileSync(files.cert, good.cert);
    writeFileSync(files.key, good.key);
    await watched.reload();
    expect([told.at(-1)?.ok, watched.warnings()]).toEqual([true, []]);
  });
});

test('/readyz warns of a certificate that expires soon and of a key that everyone can read', async () => {
  const files = authority.issue({ untilMs: Date.now() + 20 * DAY_MS });
  chmodSync(files.key, 0o644);
  const stack = await open(files);
  expect(await warnings(stack)).toEqual([
    expect.stringMatching(/^listen\.tls: the certificate expires within 30 days: \d{4}-/),
    'listen.tls: every user of this machine can read the private key',
  ]);
});
