import { describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import * as z from 'zod';
import { durationMs } from '../../src/config/duration.ts';
import { configJsonSchema } from '../../src/config/json-schema.ts';
import { parseConfig } from '../../src/config/load.ts';
import { MASK, masked } from '../../src/config/masked.ts';
import { mistakesIn, UPSTREAM } from '../support/config-lines.ts';
import { read } from '../support/repository.ts';

describe('config/gateway.schema.json', () => {
  it('accepts the example and placeholders, and refuses a misspelt option', () => {
    const schema = z.fromJSONSchema(configJsonSchema() as Parameters<typeof z.fromJSONSchema>[0]);
    const example = parse(read('config/gateway.example.yaml'));
    expect(schema.safeParse(example).error).toBe(undefined);
    const placeholders = {
      ...{ listen: { port: '$' + '{PORT}' }, admin: { token: '$' + '{T}' } },
      ...{ upstream: { url: '$' + '{URL}' }, log: { level: '$' + '{LEVEL}' } },
    };
    expect(schema.safeParse({ ...example, ...placeholders }).error).toBe(undefined);
    expect(schema.safeParse({ ...example, limts: 1 }).success).toBe(false);
    expect(schema.safeParse({ ...example, listen: { port: 70_000 } }).success).toBe(false);
  });
});

it('an option in milliseconds takes a duration', () => {
  const { idempotency, lock } = parseConfig(
    `${UPSTREAM}idempotency: { retentionMs: 24h, inDoubtRetentionMs: 30d }\nlock: { leaseMs: "\${LEASE}" }`,
    { LEASE: '20s' },
  );
  expect(idempotency).toMatchObject({ retentionMs: 86_400_000, inDoubtRetentionMs: 2_592_000_000 });
  expect(lock.leaseMs).toBe(20_000);
  expect(parseConfig(`${UPSTREAM}lock: { leaseMs: "\${LEASE}" }`, { LEASE: '5000' }).lock.leaseMs).toBe(5000);
  for (const text of ['500ms', '30s', '15m', '24h', '30d']) expect(durationMs(text), text).toBeGreaterThan(0);
  for (const text of ['', '24', '1.5h', '-1h', '1 h', '1H', '1w', '9999999999d', 'P1D'])
    expect(durationMs(text), text).toBe(undefined);
  const match = '{ method: POST, path: /pay, where: { delayMs: "30s" } }';
  const { operations } = parseConfig(`${UPSTREAM}operations: [{ name: pay, match: ${match} }]`, {});
  expect(operations[0]?.match.where).toEqual({ delayMs: '30s' });
  expect(mistakesIn(`${UPSTREAM}lock: { leaseMs: 20 s }`)).toEqual([
    expect.stringMatching(/^gateway.yaml: lock.leaseMs: "20 s" is not allowed: .*such as 500ms, 30s, 24h/),
  ]);
  expect(mistakesIn(`${UPSTREAM}lock: { leaseMs: 30d }`)).toContainEqual(
    expect.stringMatching(/lock.leaseMs: "30d" .*600000/),
  );
});

it('a printed configuration has no secret', () => {
  const config = parseConfig(
    `upstream: { url: "http://127.0.0.1:9000" }
admin: { token: secret-secret-secret, tokens: [{ name: ada, token: secret-secret-second }] }
auth: { pepper: secret-secret-secret, forward: replace, replaceWith: Bearer secret }
store: { kind: redis, url: "redis://user:secret@redis.internal:6379/1?password=secret" }
lock: { nodes: ["redis://:secret@a:1", "redis://b:1", "redis://:secret@c:1"] }
operations:
  - name: pay
    match: { method: POST, path: /pay }
    idempotency:
      inDoubt: lookup
      lookup: { path: "/t/{merchant}?key={key}&token=secret", headers: { authorization: Bearer secret }, completed: [200] }
`,
    {},
  );
  const printed = masked(config);
  expect(JSON.stringify(printed).replaceAll(MASK, '')).not.toMatch(/secret|Bearer/);
  expect(printed).toMatchObject({
    admin: { token: MASK, port: 8081 },
    auth: { pepper: MASK, replaceWith: MASK },
    store: { url: 'redis://user:masked@redis.internal:6379/1?password=masked' },
    lock: { nodes: [expect.anything(), 'redis://b:1', expect.anything()] },
    operations: [{ idempotency: { lookup: { headers: { authorization: MASK } } } }],
  });
});
