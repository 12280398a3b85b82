import { describe, expect, it } from 'vitest';
import { parseConfig } from '../../src/config/load.ts';
import { policyWarnings } from '../../src/gateway/readiness.ts';
import { mistakesIn, UPSTREAM } from '../support/config-lines.ts';
import { eachRow } from '../support/each-row.ts';

const PATH = 'operations[0].idempotency';
const withPolicy = (idempotency: string, more = '') =>
  `${UPSTREAM}${more}operations:\n  - { name: pay, match: { method: POST, path: /pay }, idempotency: { ${idempotency} } }\n`;
const looking = (lookup: string) => `key: optional, inDoubt: lookup, lookup: { ${lookup} }`;
const withLookup = (lookup: string) => withPolicy(looking(lookup));
const elsewhere = (path: string): [string, string] => [looking(`path: "${path}"`), 'lookup.path: '];

const GOOD = 'path: "/tx?merchant={merchant}&key={key}"';

describe('an in-doubt policy', () => {
  it('is the safest one by default', () => {
    const [operation] = parseConfig(withPolicy('key: optional'), {}).operations;
    expect(operation?.idempotency).toMatchObject({
      inDoubt: 'hold',
      release: [401, 429],
      unknown: [408, 502, 503, 504, 520, 522, 524],
    });
  });

  it('takes a status that the operator releases out of the default of unknown', () => {
    const [operation] = parseConfig(withPolicy('release: [503, 520]'), {}).operations;
    expect(operation?.idempotency.unknown).toEqual([408, 502, 504, 522, 524]);
  });

  it('has defaults for all of a lookup but its path', () => {
    const [operation] = parseConfig(withLookup(GOOD), {}).operations;
    expect(operation?.idempotency.lookup).toEqual({
      path: '/tx?merchant={merchant}&key={key}',
      headers: {},
      completed: [200],
      released: [],
      completedStatus: 200,
      releaseAfterMs: 60_000,
      timeoutMs: 5000,
      firstAfterMs: 1000,
      maxPauseMs: 60_000,
    });
  });

  it('is refused if it is incomplete, contradictory or unsafe', () => {
    const onlyWith = 'lookup: the value is not allowed: only goes with inDoubt: lookup';
    const both = 'is not allowed: must hold {merchant} and {key}';
    const cases: [policy: string, mistake: string, more?: string][] = [
      ['inDoubt: guess', 'inDoubt: "guess" is not allowed'],
      ['release: [200]', 'release[0]: 200 is not allowed'],
      ['release: [502], unknown: [500, 502]', 'unknown: the value is not allowed: 502 is in release too'],
      ['unknown: [401]', 'unknown: the value is not allowed: 401 is in release too'],
      ['inDoubt: lookup', 'lookup: is needed with inDoubt: lookup'],
      [`lookup: { ${GOOD} }`, onlyWith],
      [`inDoubt: retry, lookup: { ${GOOD} }`, onlyWith],
      [looking(''), 'lookup.path: is missing'],
      // Both could find another transaction.
      [looking('path: /tx'), `lookup.path: "/tx" ${both}`],
      [looking('path: "/tx/{key}"'), `lookup.path: "/tx/{key}" ${both}`],
      ...['http://a/{merchant}/{key}', '//a/{merchant}/{key}', '/a#{merchant}/{key}'].map(elsewhere),
      ...['/{merchant}/{key}/{secret}', '/{merchant}/{key}/}'].map(elsewhere),
      [
        looking(`${GOOD}, completed: [404], released: [404]`),
        'lookup.released: the value is not allowed: 404',
      ],
      [looking(`${GOOD}, completed: []`), 'lookup.completed: '],
      [
        looking(`${GOOD}, firstAfterMs: 100, maxPauseMs: 50`),
        'maxPauseMs: 50 is not allowed: must not be less',
      ],
      [looking(`${GOOD}, headers: { host: other }`), 'lookup.headers'],
      [
        looking(`${GOOD}, releaseAfterMs: 40000`),
        'lookup.releaseAfterMs: 40000 is not allowed: must not be less than lock.leaseMs (50000)',
        'lock: { leaseMs: 50000 }\n',
      ],
      [
        looking(`${GOOD}, releaseAfterMs: 29999`),
        'lookup.releaseAfterMs: 29999 is not allowed: must not be less than upstream.responseTimeoutMs (30000)',
      ],
    ];
    eachRow(cases, ([policy, mistake, more]) => {
      const [line = '', ...others] = mistakesIn(withPolicy(policy, more));
      expect(others).toEqual([]);
      expect(line).toContain(`${PATH}.`);
      expect(line).toContain(mistake);
    });
  });

  const warningsOf = (text: string) => policyWarnings(parseConfig(text, {}));

  it('causes a warning if it can execute twice', () => {
    expect(warningsOf(withPolicy('key: optional'))).toEqual([]);
    expect(warningsOf(withLookup(GOOD))).toEqual([]);
    expect(warningsOf(withPolicy('inDoubt: retry'))).toEqual([
      expect.stringMatching(/^pay has inDoubt: retry: .*twice/),
    ]);
  });

  it('causes a warning if its own list drops a status of proxies from unknown', () => {
    expect(warningsOf(withPolicy('unknown: [408, 500, 502, 503, 504]'))).toEqual([]);
    expect(warningsOf(withPolicy('unknown: [502, 504], release: [503]'))).toEqual([]);
    expect(warningsOf(withPolicy('unknown: [500, 503]'))).toEqual([
      expect.stringMatching(/^pay has an unknown without 502, 504: .*becomes the result/),
    ]);
    expect(warningsOf(withPolicy('unknown: [], key: none'))).toHaveLength(1);
  });

  it('causes a warning if a lookup that fails releases the key', () => {
    const lookups = (list: string) => warningsOf(withLookup(`${GOOD}, ${list}`));
    expect(lookups('released: [400, 404, 410, 422, 499]')).toEqual([]);
    expect(lookups('released: [401, 403, 404, 407, 408, 429, 500, 599]')).toEqual([
      expect.stringMatching(/^pay has 401, 403, 407, 408, 429, 500, 599 in lookup\.released: .*paid again/),
    ]);
  });

  it('causes a warning if a cut response can become a result', () => {
    expect(warningsOf(UPSTREAM.replace('}', ', endOfConnection: trusted }'))).toEqual([
      expect.stringMatching(/^upstream\.endOfConnection is trusted: .*cut/),
    ]);
  });

  it('causes a warning for requests without protection', () => {
    expect(warningsOf(`${UPSTREAM}idempotency: { undeclared: pass }`)).toEqual([
      expect.stringMatching(/^idempotency\.undeclared is pass: .*does not protect/),
    ]);
    expect(warningsOf(withPolicy('key: none'))).toEqual([
      expect.stringMatching(/^pay has key: none: .*executed again/),
    ]);
    expect(warningsOf(withPolicy('key: none').replace('POST', 'GET'))).toEqual([]);
    for (const undeclared of ['protect', 'refuse'])
      expect(warningsOf(`${UPSTREAM}idempotency: { undeclared: ${undeclared} }`)).toEqual([]);
  });
});
