import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { parseConfig } from '../../src/config/load.ts';
import { configSchema } from '../../src/config/schema.ts';
import { operationIdempotencyOptions } from '../../src/idempotency/options.ts';
import { optionPaths, pathsIn } from '../support/option-paths.ts';

const FILE = fileURLToPath(new URL('../../config/gateway.example.yaml', import.meta.url));
const text = readFileSync(FILE, 'utf8');

/** Older names, which the example does not teach. */
const OLDER_NAMES = new Set(['operations[].match.body']);
const OPTIONS = [...optionPaths(configSchema)].filter((path) => !OLDER_NAMES.has(path));

/** Every option that is off, switched on. */
const switchedOn = (yaml: string) => yaml.replace(/^( +)#(?=\w)/gm, '$1');
/** The section `store` as it reads without its #. */
const otherStore = (/^#store:\n(?:#.*\n)+/m.exec(text)?.[0] ?? '').replace(/^#/gm, '');

const ENV = {
  REDIS_URL: 'rediss://user:password@redis.internal:6380/1',
  ONCEGATE_ADMIN_TOKEN: 'an-admin-token-of-some-length',
  ONCEGATE_PEPPER: 'a-pepper-of-some-length',
  BACKEND_KEY: 'sk_backend',
  REDIS_PASSWORD: 'a-password',
  LOOKUP_TOKEN: 'a-token',
};

describe('config/gateway.example.yaml', () => {
  it('says what the gateway does by itself', () => {
    const config = parseConfig(text, {}, FILE);
    expect(config).toEqual(configSchema.parse({ upstream: { url: config.upstream.url } }));
  });

  it('shows every option that there is', () => {
    expect(OPTIONS).toEqual(
      expect.arrayContaining(['store.connectTimeoutMs', 'operations[].match.where', 'workers']),
    );
    const shown = new Set([...pathsIn(parse(switchedOn(text))), ...pathsIn(parse(switchedOn(otherStore)))]);
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

  it('has a Redis that works when it is taken instead', () => {
    const { upstream } = parse(text);
    const { store } = parseConfig(`upstream: { url: "${upstream.url}" }\n${otherStore}`, ENV);
    const bare = configSchema.parse({ upstream, store: { kind: 'redis', url: ENV.REDIS_URL } });
    expect(store).toEqual(bare.store);
    expect(Object.keys(parse(otherStore).store).sort()).toEqual(Object.keys(bare.store).sort());
  });

  it.each(['sentinels', 'cluster'])('has %s that work when they are taken instead', (location) => {
    const others = ['url', 'sentinels', 'cluster'].filter((name) => name !== location);
    const lines = switchedOn(otherStore).split('\n');
    const kept = lines.filter((line) => !others.some((name) => line.startsWith(`  ${name}:`)));
    const { store } = parseConfig(`upstream: { url: "http://a" }\n${kept.join('\n')}`, ENV);
    expect(store).toMatchObject({ kind: 'redis', password: ENV.REDIS_PASSWORD, tls: true });
    expect(store).toHaveProperty(location);
  });

  it('has options that work when they are switched on', () => {
    const chosen = switchedOn(text)
      .replace('forward: keep', 'forward: replace')
      .replace(/^( +inDoubt: )hold/m, '$1lookup');
    const config = parseConfig(chosen, ENV);
    expect(config.admin.token).toBe(ENV.ONCEGATE_ADMIN_TOKEN);
    expect(config.auth).toMatchObject({ pepper: ENV.ONCEGATE_PEPPER, replaceWith: 'Bearer sk_backend' });
    const lookup = config.operations.find(({ name }) => name === 'withdraw')?.idempotency.lookup;
    const { path } = lookup ?? { path: '' };
    const bare = { key: 'optional', inDoubt: 'lookup', lookup: { path } };
    expect({ ...lookup, headers: {} }).toEqual(operationIdempotencyOptions.parse(bare).lookup);
    expect(lookup?.headers).toEqual({ authorization: 'Bearer a-token' });
  });
});
