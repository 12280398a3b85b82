import { describe, expect, it } from 'vitest';
import { parseConfig } from '../../src/config/load.ts';
import { MAX_VERSIONS, mergeReload, withVersion } from '../../src/config/reload.ts';
import type { Config } from '../../src/config/schema.ts';
import { UPSTREAM } from '../support/config-lines.ts';

const parse = (text: string): Config => parseConfig(text, {});
const started = parse(UPSTREAM);
const LOOKUP = 'path: "/status/{merchant}/{key}"';
const withdraw = (more: string) =>
  `operations:\n  - { name: withdraw, match: { method: POST, path: /pay }, idempotency: { ${more} } }\n`;
const lookup = (more: string) => withdraw(`inDoubt: lookup, lookup: { ${LOOKUP}, ${more} }`);

describe('a reload of the configuration', () => {
  it('takes operations, limits, the log level and the merchants with metrics, and keeps what needs a restart', () => {
    const text =
      'listen: { port: 2 }\nlimits: { bodyBytes: 5000 }\nlog: { level: warn }\nmetrics: { merchants: [M-1] }\nidempotency: { undeclared: pass }\n';
    const loaded = parse(
      `upstream: { url: "http://other:1" }\nstore: { kind: redis, url: "redis://:secret@a" }\n${text}${withdraw('waitMs: 5')}`,
    );
    const decision = mergeReload([started], loaded);
    expect(decision).toEqual({
      kind: 'accepted',
      config: {
        ...started,
        ...{ operations: loaded.operations, limits: loaded.limits, log: loaded.log, metrics: loaded.metrics },
      },
      changed: ['limits.bodyBytes', 'log.level', 'metrics.merchants', 'operations'],
      needsRestart: expect.arrayContaining([
        'listen.port',
        'upstream.url',
        'store.kind',
        'store.url',
        'idempotency.undeclared',
      ]),
    });
    expect(JSON.stringify((decision as { needsRestart: string[] }).needsRestart)).not.toContain('secret');
  });

  it('adds, changes and removes the limits of merchants', () => {
    const limited = (text: string) => parse(`${UPSTREAM}limits: { perMerchant: { ${text} } }`);
    const one = limited('requests: 10, timeoutMs: 20');
    const other = limited('requests: 20, timeoutMs: 30');
    const changes: [before: Config, after: Config, changed: string[]][] = [
      [started, one, ['limits.perMerchant']],
      [one, other, ['limits.perMerchant.requests', 'limits.perMerchant.timeoutMs']],
      [other, started, ['limits.perMerchant']],
    ];
    for (const [before, after, changed] of changes)
      expect(mergeReload([before], after)).toEqual({
        ...{ kind: 'accepted', config: after, changed, needsRestart: [] },
      });
  });

  it('is refused if its operations contradict a lease that needs a restart', () => {
    const short = 'lock: { leaseMs: 3000 }\nupstream: { url: "http://a", responseTimeoutMs: 1000 }\n';
    const inForce = parse(`upstream: { url: "http://a", responseTimeoutMs: 1000 }\n${withdraw('waitMs: 0')}`);
    expect(mergeReload([inForce], parse(short + lookup('releaseAfterMs: 4000')))).toEqual({
      kind: 'refused',
      mistakes: [
        'operations[0].idempotency.lookup.releaseAfterMs: must not be less than lock.leaseMs (10000), with the options in force that need a restart to change',
      ],
    });
  });

  it('is refused if a name gets other requests and another lookup', () => {
    const before = parse(UPSTREAM + withdraw('waitMs: 0'));
    const other = (text: string) => UPSTREAM + text.replace('/pay', '/refund');
    const reused = parse(other(lookup('released: [404]')));
    expect(mergeReload([before], reused)).toEqual({
      kind: 'refused',
      mistakes: [expect.stringMatching(/^operations\[0\]\.name: "withdraw" named other requests/)],
    });
    const hasReused = mergeReload([before, parse(UPSTREAM)], reused);
    expect(hasReused.kind).toBe('refused');
    expect(mergeReload([before], parse(other(withdraw('waitMs: 0')))).kind).toBe('accepted');
    expect(mergeReload([before], parse(UPSTREAM + lookup('released: [404]'))).kind).toBe('accepted');
    const same = [parse(UPSTREAM + lookup('released: [404]'))];
    expect(mergeReload(same, reused).kind).toBe('accepted');
  });

  it('is refused if a new operation takes requests from a name that gets another lookup', () => {
    const operation = (name: string, match: string, path?: string) =>
      `  - { name: ${name}, match: { method: POST, ${match} }, idempotency: ${
        path ? `{ inDoubt: lookup, lookup: { path: "${path}/{merchant}/{key}", released: [404] } }` : '{}'
      } }\n`;
    const versionOf = (...operations: string[]) => parse(`${UPSTREAM}operations:\n${operations.join('')}`);
    const before = versionOf(operation('call', 'path: /pay', '/all'));
    const withdrawal = operation('withdraw', 'path: /pay, where: { action: withdraw }');
    const after = versionOf(withdrawal, operation('call', 'path: /pay', '/checkouts'));
    expect(mergeReload([before], after)).toEqual({
      kind: 'refused',
      mistakes: [expect.stringMatching(/^operations\[1\]\.name: "call" named other requests/)],
    });
    const accepted: [before: Config, after: Config][] = [
      [before, versionOf(withdrawal, operation('call', 'path: /pay', '/all'))],
      [before, versionOf(operation('refund', 'path: /refund'), operation('call', 'path: /pay', '/new'))],
      [after, versionOf(withdrawal, operation('call', 'path: /pay', '/new'))],
      [after, versionOf(operation('call', 'path: /pay', '/new'))],
    ];
    for (const [earlier, later] of accepted) expect(mergeReload([earlier], later).kind).toBe('accepted');
  });

  it('is refused if the operations have changed too often since the start', () => {
    const numbered = (i: number) => parse(UPSTREAM + withdraw('waitMs: 0').replace('/pay', `/pay${i}`));
    let versions: Config[] = [];
    for (let i = 0; i < MAX_VERSIONS; i++) versions = withVersion(versions, numbered(i));
    expect(mergeReload(versions, numbered(MAX_VERSIONS))).toMatchObject({ kind: 'refused' });
    expect(mergeReload(versions, numbered(1)).kind).toBe('accepted');
  });
});

describe('the versions since the start', () => {
  it('are those that identify requests differently, and the last one is in force', () => {
    const [a, b] = [parse(UPSTREAM), parse(UPSTREAM + withdraw('waitMs: 1'))];
    const c = parse(UPSTREAM + withdraw('waitMs: 2'));
    expect(withVersion(withVersion(withVersion([a], b), c), a)).toEqual([c, a]);
  });
});
