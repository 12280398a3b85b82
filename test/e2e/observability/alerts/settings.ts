import { randomBytes, randomUUID } from 'node:crypto';
import { readFileSync, renameSync, writeFileSync } from 'node:fs';
import { expect, type TestContext } from 'vitest';
import { parse, stringify } from 'yaml';
import { Authority, replaceFiles } from '../../../support/certificates.ts';
import { withdraw } from '../../../support/client.ts';
import { keyFileIn } from '../../../support/config.ts';
import { openGateway, openStack } from '../../../support/stack.ts';
import { configFor, openSandbox, startGateway } from '../../process/gateways.ts';
import { keepOn, type Watch } from './watch.ts';

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;

const replace = (path: string, text: string) => {
  writeFileSync(`${path}.new`, text);
  renameSync(`${path}.new`, path);
};

/** A certificate, and the secret keys of a merchant, come to their end. New versions have mistakes. */
export async function keysAndCertificatesEnd(watch: Watch, { onTestFinished }: TestContext): Promise<void> {
  const authority = new Authority();
  const files = authority.issue({ untilMs: Date.now() + 10 * DAY_MS });
  const stack = await openStack({ listen: { tls: files } });
  onTestFinished(() => stack.close());
  await watch.add(stack);
  const keyFile = keyFileIn(stack.config);
  const before = readFileSync(keyFile, 'utf8');
  const withKeyUntil = (ms: number) => {
    const merchants = parse(before);
    const expiresAt = new Date(ms).toISOString();
    merchants.merchants.push({
      code: 'M-LEAVING',
      keys: [{ id: 'last', dangerouslyPlainSecret: 'sk_leaving', expiresAt }],
    });
    replace(keyFile, stringify(merchants));
  };

  withKeyUntil(Date.now() + 3 * DAY_MS);
  await watch.fire('OncegateCertificateExpires', 'OncegateKeyExpires');
  expect(await watch.firing()).not.toContain('OncegateCertificateExpired');
  expect(await watch.firing()).not.toContain('OncegateKeyExpired');

  replaceFiles(files, authority.issue({ untilMs: Date.now() + 2 * DAY_MS }));
  withKeyUntil(Date.now() + HOUR_MS);
  await watch.fire('OncegateCertificateExpired', 'OncegateKeyExpired');

  const stop = keepOn(1000, async (times) => {
    replace(files.cert, `no certificate ${times}`);
    replace(keyFile, `merchants: ${times}`);
  });
  await watch.fire('OncegateCertificateRefused', 'OncegateKeyFileRefused');
  await stop();

  replaceFiles(files, authority.issue());
  replace(keyFile, before);
  await watch.clear('OncegateCertificateRefused', 'OncegateKeyFileRefused');
  await watch.clear('OncegateCertificateExpires', 'OncegateCertificateExpired');
  await watch.clear('OncegateKeyExpires', 'OncegateKeyExpired');
}

/** A configuration with a mistake, a gateway that only observes, and one that does not have the key of encrypted records. */
export async function wronglyConfigured(watch: Watch, { onTestFinished }: TestContext): Promise<void> {
  const sandbox = await openSandbox();
  const config = configFor(sandbox);
  const spawned = await startGateway(config);
  const observer = await openGateway(configFor(sandbox, { idempotency: { mode: 'observe' } }));
  const encrypting = configFor(sandbox, {
    store: {
      kind: 'sqlite',
      path: (config.store as { path: string }).path,
      encryption: { keys: [{ id: '2026', secret: randomBytes(32).toString('base64') }] },
    },
  });
  const writer = await openGateway(encrypting);
  await watch.add(spawned, observer, writer);
  onTestFinished(async () => {
    await Promise.all([spawned.end(), observer.shutdown(), writer.shutdown()]);
  });

  const key = randomUUID();
  expect((await withdraw(writer.url, { key })).status).toBe(201);
  expect((await withdraw(spawned.url, { key })).status).toBe(503);
  const stop = keepOn(1000, async (times) => {
    replace(spawned.file, stringify({ ...config, workers: -1 - times }));
    await withdraw(spawned.url, { key });
  });
  await watch.fire('OncegateUnreadableRecords', 'OncegateConfigRefused', 'OncegateObserving');
  await stop();

  replace(spawned.file, stringify(config));
  const protecting = await openGateway(configFor(sandbox));
  onTestFinished(() => protecting.shutdown());
  watch.remove(observer);
  await watch.add(protecting);
  await watch.clear('OncegateUnreadableRecords', 'OncegateConfigRefused', 'OncegateObserving');
  expect((await withdraw(writer.url, { key })).headers['idempotent-replayed']).toBe('true');
}
