import { mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { stringify } from 'yaml';
import type * as z from 'zod';
import { type Config, configSchema } from '../../src/config/schema.ts';
import { atEndOfFile } from './at-end-of-file.ts';

/** A configuration as a file would have it. */
export type ConfigInput = z.input<typeof configSchema>;

/** Sections that a test sets; the backend's address may be left to the stack. */
export type MoreConfig = Omit<Partial<ConfigInput>, 'upstream'> & {
  upstream?: Partial<ConfigInput['upstream']>;
};

const folders = new Set<string>();
atEndOfFile(() => {
  for (const folder of folders) rmSync(folder, { recursive: true, force: true });
  folders.clear();
});

/** A folder that is removed after the test file, not after a single test, because tests may run concurrently. */
export function temporaryFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'oncegate-test-'));
  folders.add(folder);
  return folder;
}

/** Replaces a file in one step, so that nobody reads half of it. */
export function replaceFile(path: string, text: string): void {
  writeFileSync(`${path}.new`, text);
  renameSync(`${path}.new`, path);
}

/** Writes a key file with the sandbox's merchants and with keys that are invalid in each way. Returns its path. */
export function writeKeys(folder: string): string {
  const path = join(folder, 'keys.yaml');
  const plain = (id: string, secret: string, more: object = {}) => ({
    id,
    dangerouslyPlainSecret: secret,
    ...more,
  });
  const merchants = [
    {
      code: 'M-ALPHA',
      keys: [
        plain('alpha-1', 'sk_sandbox_alpha'),
        plain('alpha-2', 'sk_sandbox_alpha_2'),
        plain('alpha-revoked', 'sk_test_revoked', { revokedAt: '2020-01-01T00:00:00Z' }),
        plain('alpha-expired', 'sk_test_expired', { expiresAt: '2020-01-01T00:00:00Z' }),
        plain('alpha-future', 'sk_test_future', { notBefore: '2999-01-01T00:00:00Z' }),
        plain('alpha-balance', 'sk_test_balance_only', { scopes: ['balance'] }),
      ],
    },
    { code: 'M-BRAVO', keys: [plain('bravo-1', 'sk_sandbox_bravo')] },
    { code: 'M-CHARLIE', keys: [plain('charlie-1', 'sk_sandbox_charlie')] },
  ];
  writeFileSync(path, stringify({ merchants }));
  return path;
}

/** Short times, free ports, the sandbox's merchants; `more` wins, section by section. */
export function testConfig(folder: string, upstreamUrl: string, more: MoreConfig = {}): ConfigInput {
  // It has to be less than the lease. A shorter one ends on a loaded machine before the event loop sees the connection.
  const connectTimeoutMs = Math.min(5000, (more.lock?.leaseMs ?? 10_000) / 2);
  return {
    listen: { host: '127.0.0.1', port: 0 },
    admin: { host: '127.0.0.1', port: 0 },
    log: { level: 'info' },
    auth: { keys: { source: 'file', path: writeKeys(folder) } },
    ...more,
    upstream: { url: upstreamUrl, connectTimeoutMs, responseTimeoutMs: 5000, ...more.upstream },
    // A loaded test machine may be delayed for longer than a store should be in production.
    store: {
      ...((more.store?.kind ?? 'sqlite') === 'sqlite' && { kind: 'sqlite', path: join(folder, 'data') }),
      timeoutMs: 5000,
      ...more.store,
    } as ConfigInput['store'],
    shutdown: { delayMs: 0, graceMs: 5000, ...more.shutdown },
  };
}

/** The same in a folder of its own. */
export const configFor = (backend: { url: string }, more: MoreConfig = {}): ConfigInput =>
  testConfig(temporaryFolder(), backend.url, more);

/** Writes a configuration where a gateway reads it. Returns the file's path. */
export function configFile(config: object, folder: string = temporaryFolder()): string {
  const file = join(folder, 'gateway.yaml');
  writeFileSync(file, stringify(config));
  return file;
}

/** The path of the key file that a configuration names. */
export function keyFileIn(input: ConfigInput): string {
  const { keys } = parsedConfig(input).auth;
  if (keys.source !== 'file') throw new Error('the configuration names no key file');
  return keys.path;
}

export const parsedConfig = (input: ConfigInput): Config => configSchema.parse(input);

/** The longest that a graceful shutdown can take: the configured times, the last commands to the store, and a reserve. */
export const shutdownWithinMs = ({ shutdown, store }: Config): number =>
  shutdown.delayMs + shutdown.graceMs + shutdown.completeMs + 4 * store.timeoutMs + 5000;
