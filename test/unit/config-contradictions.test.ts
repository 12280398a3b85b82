import { describe, expect, it } from 'vitest';
import { parseConfig } from '../../src/config/load.ts';
import { mistakesIn, UPSTREAM } from '../support/config-lines.ts';

const operation = (name: string, where?: string, { path = '/v1/index.php', method = 'POST' } = {}) =>
  `  - { name: ${name}, match: { method: ${method}, path: "${path}"${where ? `, where: { ${where} }` : ''} } }\n`;
const operations = (...list: string[]) => `${UPSTREAM}operations:\n${list.join('')}`;

describe('what contradicts itself is refused', () => {
  it('lock nodes beside a sqlite store', () => {
    expect(mistakesIn(`${UPSTREAM}lock: { nodes: ["redis://a"] }`)).toEqual([
      expect.stringMatching(/^gateway\.yaml: lock\.nodes: .*redis store/),
    ]);
  });

  it('an even number of lock nodes', () => {
    const text = `${UPSTREAM}store: { kind: redis, url: "redis://a" }\nlock: { nodes: ["redis://a", "redis://b"] }`;
    expect(mistakesIn(text)).toEqual([expect.stringMatching(/^gateway\.yaml: lock\.nodes: .*odd number/)]);
  });

  it.each([
    ['no place', ''],
    ['two places', 'url: "redis://a", cluster: ["redis://b"]'],
    [
      'three places',
      'url: "redis://a", cluster: ["redis://b"], sentinels: { name: m, nodes: ["redis://c"] }',
    ],
  ])('a redis store with %s', (_, place) => {
    expect(mistakesIn(`${UPSTREAM}store: { kind: redis, ${place} }`)).toEqual([
      expect.stringMatching(/^gateway\.yaml: store\.url: .*exactly one of url, sentinels and cluster/),
    ]);
  });

  it.each(['username: a', 'password: a', 'tls: true'])(
    'credentials beside an address that has its own: %s',
    (more) => {
      expect(mistakesIn(`${UPSTREAM}store: { kind: redis, url: "redis://a", ${more} }`)).toEqual([
        expect.stringMatching(/^gateway\.yaml: store\.url: .*carries its own/),
      ]);
    },
  );

  it('replicas to wait for in a cluster', () => {
    const text = `${UPSTREAM}store: { kind: redis, cluster: ["redis://a"], durability: { replicas: 1 } }`;
    expect(mistakesIn(text)).toEqual([
      expect.stringMatching(/^gateway\.yaml: store\.durability\.replicas: 1 is not allowed: .*cluster/),
    ]);
  });

  it('a time to connect that outlasts the lease', () => {
    for (const leaseMs of [1500, 2000])
      expect(
        mistakesIn(`upstream: { url: "http://a", connectTimeoutMs: 2000 }\nlock: { leaseMs: ${leaseMs} }`),
      ).toEqual([
        `gateway.yaml: upstream.connectTimeoutMs: 2000 is not allowed: must be less than lock.leaseMs (${leaseMs})`,
      ]);
  });

  it('a retention that one execution may outlast', () => {
    const upstream = 'url: "http://a", queueTimeoutMs: 500, connectTimeoutMs: 1000, responseTimeoutMs: 5000';
    const withRetention = (retentionMs: number) =>
      mistakesIn(
        `upstream: { ${upstream} }\nlock: { leaseMs: 2000 }\nidempotency: { retentionMs: ${retentionMs} }`,
      );
    const sum =
      'upstream.queueTimeoutMs, connectTimeoutMs and responseTimeoutMs and lock.leaseMs together (8500)';
    for (const retentionMs of [1000, 8500])
      expect(withRetention(retentionMs)).toEqual([
        `gateway.yaml: idempotency.retentionMs: ${retentionMs} is not allowed: must be more than what an execution may take: ${sum}`,
      ]);
    expect(withRetention(8501)).toEqual([]);
  });

  it('a key in doubt that expires before a completed one', () => {
    const withInDoubt = (inDoubtRetentionMs: number) =>
      mistakesIn(
        `${UPSTREAM}idempotency: { retentionMs: 86400000, inDoubtRetentionMs: ${inDoubtRetentionMs} }`,
      );
    expect(withInDoubt(86_399_999)).toEqual([
      'gateway.yaml: idempotency.inDoubtRetentionMs: 86399999 is not allowed: must not be less than idempotency.retentionMs (86400000)',
    ]);
    expect(withInDoubt(86_400_000)).toEqual([]);
    // The other option may be at its default, and so may the one that is wrong.
    const text = `${UPSTREAM}idempotency: { inDoubtRetentionMs: 3600000 }`;
    expect(mistakesIn(text)).toEqual([expect.stringMatching(/inDoubtRetentionMs: 3600000 .* \(86400000\)$/)]);
    expect(mistakesIn(`${UPSTREAM}lock: { leaseMs: 1500 }`)).toEqual([
      'gateway.yaml: upstream.connectTimeoutMs: must be less than lock.leaseMs (1500)',
    ]);
  });

  it('a key that is required of a safe method, which it does not protect', () => {
    const report = (method: string, where = '') =>
      `${UPSTREAM}operations: [{ name: report, match: { method: ${method}, path: /v1/report${where} }, idempotency: { key: required } }]\n`;
    expect(mistakesIn(report('[GET, HEAD]'))).toEqual([
      expect.stringMatching(/^gateway\.yaml: operations\[0\]\.idempotency\.key: .*has no effect/),
    ]);
    expect(() => parseConfig(report('[GET, POST]'), {})).not.toThrow();
    expect(() => parseConfig(report('GET', ', where: { action: pay }'), {})).not.toThrow();
  });

  it('a name that is declared twice', () => {
    expect(mistakesIn(operations(operation('pay', 'action: a'), operation('pay', 'action: b')))).toEqual([
      expect.stringMatching(/^gateway\.yaml: operations\[1\]\.name: .*"pay" is declared twice/),
    ]);
  });

  it.each([
    ['the same path without where', operation('a'), operation('b')],
    ['one without where before one with it', operation('a'), operation('b', 'action: b')],
    ['the same member and value', operation('a', 'action: a'), operation('b', 'action: a')],
    ['a member more', operation('a', 'action: a'), operation('b', 'action: a, kind: b')],
    ['a method less', operation('a', '', { method: '[POST, PUT]' }), operation('b', '', { method: 'PUT' })],
    [
      'the same pattern',
      operation('a', '', { path: '/v1/:id' }),
      operation('b', 'action: b', { path: '/v1/:id' }),
    ],
  ])('an operation that an earlier one hides: %s', (_, first, second) => {
    expect(mistakesIn(operations(first, second))).toEqual([
      'gateway.yaml: operations[1].match: the value is not allowed: every request that it matches is "a" already: tell them apart by where, or declare it before',
    ]);
  });

  it('where beside its older name', () => {
    const match = 'method: POST, path: /, where: { action: a }, body: { action: a }';
    expect(mistakesIn(`${UPSTREAM}operations: [{ name: a, match: { ${match} } }]`)).toEqual([
      expect.stringMatching(/^gateway\.yaml: operations\[0\]\.match\.body: .*older name of where/),
    ]);
  });

  it('replaceWith without replace, and replace without replaceWith', () => {
    for (const auth of [
      '{ forward: replace }',
      '{ replaceWith: "Bearer b" }',
      '{ forward: strip, replaceWith: b }',
    ]) {
      expect(mistakesIn(`${UPSTREAM}auth: ${auth}`), auth).toEqual([
        expect.stringMatching(/^gateway\.yaml: auth\.replaceWith: /),
      ]);
    }
  });

  it('but not what only looks alike', () => {
    const { operations: list } = parseConfig(
      operations(
        operation('a', 'action: a'),
        operation('b', 'action: b'),
        operation('c', 'kind: a'),
        operation('d', 'action: a, kind: a', { path: '/v1/other' }),
        operation('e', 'action: a', { path: '/v1/other' }),
        operation('f', 'action: a', { method: '[POST, PUT]' }),
        // What the others leave.
        operation('rest'),
        operation('put', '', { method: 'PUT' }),
      ),
      {},
    );
    expect(list.map(({ name }) => name)).toEqual(['a', 'b', 'c', 'd', 'e', 'f', 'rest', 'put']);
  });
});
