import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { parseConfig } from '../../src/config/load.ts';
import { configSchema } from '../../src/config/schema.ts';
import { operationIdempotencyOptions } from '../../src/idempotency/idempotency-options.ts';
import { optionPaths, pathsIn } from '../support/option-paths.ts';

const FILE = fileURLToPath(new URL('../../config/gateway.example.yaml', import.meta.url));
const text = readFileSync(FILE, 'utf8');

const OPTIONS = [...optionPaths(configSchema)];

/** Enables every option that is commented out. */
const enabled = (yaml: string) => yaml.replace(/^( +)#(?=\w|- )/gm, '$1');
/** The sections `store` that are commented out. */
const [redisStore = '', postgresStore = ''] = [...text.matchAll(/^#store:\n(?:#.*\n)+/gm)].map(([section]) =>
  section.replace(/^#/gm, ''),
);

/** The section with `tls: false` left out, because a section `tls` follows. */
const withTls = (section: string) => section.replace(/^ +tls: false.*\n/m, '');

/** The section `auth` for keys of the backend, which is commented out. */
const backendKeys = (
  /^#auth:\n# {2}keys:\n# {4}source: upstream(?:.*\n#)+.*\n/m.exec(text)?.[0] ?? ''
).replace(/^#/gm, '');

const ENV = {
  DATABASE_URL: 'postgres://user:password@postgres.internal:5432/payments',
  REDIS_URL: 'rediss://user:password@redis.internal:6380/1',
  ONCEGATE_ADMIN_TOKEN: 'an-admin-token-of-some-length',
  ONCEGATE_METRICS_TOKEN: 'a-token-of-a-prometheus',
  ONCEGATE_SUPPORT_TOKEN: 'another-token-of-some-length',
  ONCEGATE_PEPPER: 'a-pepper-of-some-length',
  ONCEGATE_STORE_KEY: 'ab'.repeat(32),
  BACKEND_KEY: 'sk_backend',
  REDIS_PASSWORD: 'a-password',
  LOOKUP_TOKEN: 'a-token',
};

describe('config/gateway.example.yaml', () => {
  it('shows the defaults', () => {
    const config = parseConfig(text, {}, FILE);
    expect(config).toEqual(configSchema.parse({ upstream: { url: config.upstream.url } }));
  });

  it('shows every option', () => {
    expect(OPTIONS).toEqual(
      expect.arrayContaining(['store.connectTimeoutMs', 'operations[].match.where', 'shutdown.delayMs']),
    );
    const examples = [text, redisStore, withTls(postgresStore), backendKeys].map((example) =>
      parse(enabled(example)),
    );
    const shown = new Set(examples.flatMap((example) => [...pathsIn(example)]));
    expect(OPTIONS.filter((path) => !shown.has(path))).toEqual([]);
  });

  it('has a comment for every option', () => {
    const [sections = '', operations = ''] = text.split('\noperations:\n');
    const values = sections.split('\n').filter((line) => /^[# ]*\w+: \S/.test(line) && !/^# /.test(line));
    expect(values.filter((line) => !line.includes(' # '))).toEqual([]);
    const leaves = OPTIONS.filter((path) => path.startsWith('operations[].'));
    const uncommented = leaves.filter(
      (path) => !new RegExp(`\\b${path.split(/[.[\]]+/).findLast(Boolean)}: .* # `).test(operations),
    );
    expect(uncommented).toEqual([]);
  });

  it('has sections for Redis and PostgreSQL that are valid and show the defaults', () => {
    const { upstream } = parse(text);
    for (const [section, least] of [
      [redisStore, { kind: 'redis', url: ENV.REDIS_URL }],
      [postgresStore, { kind: 'postgres', url: ENV.DATABASE_URL }],
    ] as const) {
      const { store } = parseConfig(`upstream: { url: "${upstream.url}" }\n${section}`, ENV);
      const bare = configSchema.parse({ upstream, store: least });
      expect(store).toEqual(bare.store);
      expect(Object.keys(parse(section).store).sort()).toEqual(Object.keys(bare.store).sort());
    }
    const { store } = parseConfig(
      `upstream: { url: "${upstream.url}" }\n${withTls(enabled(postgresStore))}`,
      ENV,
    );
    expect(store).toHaveProperty('tls.ca', '/etc/oncegate/postgres-ca.crt');
  });

  it('has a section for keys of the backend that is valid and shows the defaults', () => {
    const { upstream } = parse(text);
    const { auth } = parseConfig(`upstream: { url: "${upstream.url}" }\n${backendKeys}`, ENV);
    expect(auth.keys).toEqual(parse(backendKeys).auth.keys);
    expect(auth).toEqual(configSchema.parse({ upstream, auth: { keys: { source: 'upstream' } } }).auth);
  });

  it('has sentinels and a cluster that are valid in place of the url', () => {
    for (const location of ['sentinels', 'cluster']) {
      const others = ['url', 'sentinels', 'cluster'].filter((name) => name !== location);
      const lines = enabled(redisStore).split('\n');
      const kept = lines.filter((line) => !others.some((name) => line.startsWith(`  ${name}:`)));
      const { store } = parseConfig(`upstream: { url: "http://a" }\n${kept.join('\n')}`, ENV);
      expect(store).toMatchObject({ kind: 'redis', password: ENV.REDIS_PASSWORD });
      expect(store).toHaveProperty('tls.ca', '/etc/oncegate/redis-ca.crt');
      expect(store).toHaveProperty(location);
    }
  });

  it('has commented-out options that are valid', () => {
    const chosen = enabled(text)
      // `upstream.tls` needs it.
      .replace('url: "http:', 'url: "https:')
      .replace('forward: keep', 'forward: replace')
      .replace(/^( +inDoubt: )hold/m, '$1lookup');
    const config = parseConfig(chosen, ENV);
    expect(config.upstream.tls).toHaveProperty('serverName', 'payments.internal');
    expect(config.admin.token).toBe(ENV.ONCEGATE_ADMIN_TOKEN);
    expect(config.auth).toMatchObject({ pepper: ENV.ONCEGATE_PEPPER, replaceWith: 'Bearer sk_backend' });
    const lookup = config.operations.find(({ name }) => name === 'withdraw')?.idempotency.lookup;
    const { path } = lookup ?? { path: '' };
    const bare = { key: 'optional', inDoubt: 'lookup', lookup: { path } };
    expect({ ...lookup, headers: {} }).toEqual(operationIdempotencyOptions.parse(bare).lookup);
    expect(lookup?.headers).toEqual({ authorization: 'Bearer a-token' });
  });
});
