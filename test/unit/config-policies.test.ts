import { describe, expect, it } from 'vitest';
import { parseConfig } from '../../src/config/load.ts';
import { policyWarnings } from '../../src/idempotency/options.ts';
import { mistakesIn, UPSTREAM } from '../support/config-lines.ts';

const PATH = 'operations[0].idempotency';
const withPolicy = (idempotency: string, more = '') =>
  `${UPSTREAM}${more}operations:\n  - { name: pay, match: { method: POST, path: /pay }, idempotency: { ${idempotency} } }\n`;
const withLookup = (lookup: string, more = '') =>
  withPolicy(`key: optional, inDoubt: lookup, lookup: { ${lookup} }`, more);

const GOOD = 'path: "/tx?merchant={merchant}&key={key}"';

describe('an in-doubt policy', () => {
  it('is the safest one by default', () => {
    const [operation] = parseConfig(withPolicy('key: optional'), {}).operations;
    expect(operation?.idempotency).toMatchObject({
      inDoubt: 'hold',
      release: [401, 403, 429],
      unknown: [502, 504],
    });
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
    const cases: [what: string, text: string, mistake: string][] = [
      ['an unknown policy', withPolicy('inDoubt: guess'), `${PATH}.inDoubt: "guess" is not allowed`],
      [
        'inDoubt: lookup without the section lookup',
        withPolicy('inDoubt: lookup'),
        `${PATH}.lookup: is needed with inDoubt: lookup`,
      ],
      [
        'the section lookup without inDoubt: lookup',
        withPolicy(`lookup: { ${GOOD} }`),
        `${PATH}.lookup: the value is not allowed: only goes with inDoubt: lookup`,
      ],
      [
        'the section lookup with inDoubt: retry',
        withPolicy(`inDoubt: retry, lookup: { ${GOOD} }`),
        `${PATH}.lookup: the value is not allowed: only goes with inDoubt: lookup`,
      ],
      ['a lookup without a path', withLookup(''), `${PATH}.lookup.path: is missing`],
      [
        'a path without key',
        withLookup('path: /tx'),
        `${PATH}.lookup.path: "/tx" is not allowed: must hold {merchant} and {key}`,
      ],
      [
        "a path that could find another merchant's transaction",
        withLookup('path: "/tx/{key}"'),
        `${PATH}.lookup.path: "/tx/{key}" is not allowed: must hold {merchant} and {key}`,
      ],
      ['a whole address', withLookup('path: "http://a/{merchant}/{key}"'), `${PATH}.lookup.path: `],
      ['another host', withLookup('path: "//a/{merchant}/{key}"'), `${PATH}.lookup.path: `],
      ['a fragment', withLookup('path: "/a#{merchant}/{key}"'), `${PATH}.lookup.path: `],
      ['another placeholder', withLookup('path: "/{merchant}/{key}/{secret}"'), `${PATH}.lookup.path: `],
      ['an unmatched brace', withLookup('path: "/{merchant}/{key}/}"'), `${PATH}.lookup.path: `],
      [
        'a status that means completed and released',
        withLookup(`${GOOD}, completed: [200, 404], released: [404]`),
        `${PATH}.lookup.released: the value is not allowed: 404 is in completed too`,
      ],
      ['no status that means completed', withLookup(`${GOOD}, completed: []`), `${PATH}.lookup.completed: `],
      [
        'a longest pause that is shorter than the first one',
        withLookup(`${GOOD}, firstAfterMs: 100, maxPauseMs: 50`),
        `${PATH}.lookup.maxPauseMs: 50 is not allowed: must not be less than firstAfterMs`,
      ],
      [
        'a status that releases and leaves in doubt',
        withPolicy('release: [429, 502]'),
        `${PATH}.unknown: 502 is in release too`,
      ],
      [
        'a status that leaves in doubt and releases',
        withPolicy('unknown: [403]'),
        `${PATH}.unknown: the value is not allowed: 403 is in release too`,
      ],
      [
        'a header of the gateway’s own',
        withLookup(`${GOOD}, headers: { host: other }`),
        `${PATH}.lookup.headers`,
      ],
      [
        'a release before the lease is over',
        withLookup(`${GOOD}, releaseAfterMs: 40000`, 'lock: { leaseMs: 50000 }\n'),
        `${PATH}.lookup.releaseAfterMs: 40000 is not allowed: must not be less than lock.leaseMs (50000)`,
      ],
      [
        'a release before the answer is late',
        withLookup(`${GOOD}, releaseAfterMs: 29999`),
        `${PATH}.lookup.releaseAfterMs: 29999 is not allowed: must not be less than upstream.responseTimeoutMs (30000)`,
      ],
    ];
    for (const [what, text, mistake] of cases) {
      const mistakes = mistakesIn(text);
      expect(mistakes, what).toHaveLength(1);
      expect(mistakes[0], what).toContain(mistake);
    }
  });

  it('is refused without showing the credential of a lookup', () => {
    const secret = 'hunter2-hunter2\u0007';
    const mistakes = mistakesIn(withLookup(`${GOOD}, headers: { authorization: "Bearer ${secret}" }`));
    expect(mistakes).toHaveLength(1);
    expect(mistakes.join()).not.toContain('hunter2');
  });

  const warningsOf = (text: string) => policyWarnings(parseConfig(text, {}));

  it('causes a warning if it can execute twice', () => {
    expect(warningsOf(withPolicy('key: optional'))).toEqual([]);
    expect(warningsOf(withLookup(GOOD))).toEqual([]);
    expect(warningsOf(withPolicy('inDoubt: retry'))).toEqual([
      expect.stringMatching(/^pay has inDoubt: retry: .*twice/),
    ]);
  });

  it('causes a warning for an older name, and for requests without protection', () => {
    const older = 'operations: [{ name: pay, match: { method: POST, path: /, body: { action: pay } } }]';
    expect(warningsOf(`${UPSTREAM}${older}`)).toEqual([
      'pay has match.body, which is the older name of match.where',
    ]);
    expect(warningsOf(`${UPSTREAM}${older.replace('body', 'where')}`)).toEqual([]);
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
