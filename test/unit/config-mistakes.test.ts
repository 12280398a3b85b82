import { describe, expect, it } from 'vitest';
import { parseConfig } from '../../src/config/load.ts';
import { mistakesIn, UPSTREAM } from '../support/config-lines.ts';

const match = 'match: { method: POST, path: /v1/index.php, where: { action: a } }';
const pathed = (path: string) => `match: { method: POST, path: "${path}" }`;
const MATCH = 'operations[0].match';
const LOOKUP = 'operations[0].idempotency.lookup';
const lookingUp = (lookup: string) =>
  `operations: [{ name: a, ${match}, idempotency: { inDoubt: lookup, lookup: { path: "/t/{merchant}/{key}", ${lookup} } } }]`;

describe('the message about a mistake', () => {
  it('has the path, the value, and what is allowed', () => {
    const cases: [text: string, path: string, value: string, allowed: RegExp][] = [
      ['listen: { port: 65536 }', 'listen.port', '65536', /<=65535/],
      ['listen: { port: -1 }', 'listen.port', '-1', />=0/],
      ['listen: { port: 80.5 }', 'listen.port', '80.5', /int/],
      ['listen: { port: http }', 'listen.port', '"http"', /number/],
      ['listen: { host: "" }', 'listen.host', '""', />=1 char/],
      [
        'listen: { trustedProxies: [balancer] }',
        'listen.trustedProxies[0]',
        '"balancer"',
        /an address, a range/,
      ],
      ['listen: { trustedProxies: ["10"] }', 'listen.trustedProxies[0]', '"10"', /an address, a range/],
      ['listen: { trustedProxies: [0.0.0.0/0] }', 'listen.trustedProxies[0]', '"0.0.0.0/0"', /a range/],
      ['listen: { trustedProxies: [10.0.0.0/33] }', 'listen.trustedProxies[0]', '"10.0.0.0/33"', /a range/],
      ['listen: { trustedProxies: loopback }', 'listen.trustedProxies', 'the value', /array/],
      ['admin: { port: 70000 }', 'admin.port', '70000', /<=65535/],
      ['workers: 0', 'workers', '0', />=1/],
      ['workers: 257', 'workers', '257', /<=256/],
      ['workers: some', 'workers', '"some"', /number.*"auto"/],
      ['store: { kind: postgres }', 'store.kind', '"postgres"', /'sqlite' \| 'redis'/],
      ['store: { kind: sqlite, path: 5 }', 'store.path', '5', /string/],
      ['store: { kind: sqlite, timeoutMs: 9 }', 'store.timeoutMs', '9', />=10/],
      ['store: { kind: redis, url: "redis://r", prefix: "a b" }', 'store.prefix', '"a b"', /1 to 64 letters/],
      ['lock: { leaseMs: 600001 }', 'lock.leaseMs', '600001', /<=600000/],
      ['auth: { keys: { source: ldap } }', 'auth.keys.source', '"ldap"', /one of: file/],
      ['auth: { forward: drop }', 'auth.forward', '"drop"', /"keep"\|"strip"\|"replace"/],
      ['auth: { public: [/health] }', 'auth.public[0]', 'the value', /object/],
      ['auth: { public: [{ method: get, path: /a }] }', 'auth.public[0].method', '"get"', /capitals/],
      ['auth: { public: [{ method: GET, path: "/a(b" }] }', 'auth.public[0].path', '"/a(b"', /pattern/],
      ["auth: { realm: 'a\"b' }", 'auth.realm', '"a\\"b"', /printable ASCII/],
      [
        'idempotency: { retentionMs: 2592000001, inDoubtRetentionMs: 2592000001 }',
        'idempotency.retentionMs',
        '2592000001',
        /<=2592000000/,
      ],
      ['idempotency: { headers: [] }', 'idempotency.headers', 'the value', />=1/],
      ['idempotency: { headers: [X-Key] }', 'idempotency.headers[0]', '"X-Key"', /lower case/],
      ['limits: { inFlight: 0 }', 'limits.inFlight', '0', />=1/],
      ['limits: { perMerchant: {} }', 'limits.perMerchant', 'the value', /must set requests, inFlight/],
      ['limits: { perMerchant: { inFlight: 0 } }', 'limits.perMerchant.inFlight', '0', />=1/],
      [
        'limits: { perMerchant: { requests: 1, windowMs: 1500 } }',
        'limits.perMerchant.windowMs',
        '1500',
        /whole seconds/,
      ],
      [
        'limits: { perMerchant: { inFlight: 1, windowMs: 1000 } }',
        'limits.perMerchant.windowMs',
        '1000',
        /no effect without requests/,
      ],
      [
        'limits: { perMerchant: { requests: 1, windowMs: 60s, burst: { requests: 1, windowMs: 60s } } }',
        'limits.perMerchant.burst',
        'the value',
        /longer windowMs than requests has \(60000\)/,
      ],
      [
        'limits: { perMerchant: { inFlight: 1, merchants: { M-1: { burst: { requests: 1, windowMs: 2s } } } } }',
        'limits.perMerchant.merchants.M-1.burst',
        'the value',
        /no effect without requests/,
      ],
      ['shutdown: { graceMs: soon }', 'shutdown.graceMs', '"soon"', /number/],
      ['log: { level: verbose }', 'log.level', '"verbose"', /"fatal"\|.*"silent"/],
      ['metrics: { merchants: [M-1, other] }', 'metrics.merchants[1]', '"other"', /must not be other/],
      ['metrics: { merchants: ["M 1"] }', 'metrics.merchants[0]', '"M 1"', /printable/],
      ['metrics: { merchants: [M-1, M-1] }', 'metrics.merchants', 'the value', /twice/],
      ['headers: { keepUnderscore: [A_b] }', 'headers.keepUnderscore[0]', '"A_b"', /lower case/],
      ['operations: {}', 'operations', 'the value', /array/],
      [`operations: [{ name: Pay, ${match} }]`, 'operations[0].name', '"Pay"', /lower case/],
      [
        'operations: [{ name: a, match: { method: get, path: / } }]',
        'operations[0].match.method',
        '"get"',
        /capitals/,
      ],
      [
        'operations: [{ name: a, match: { method: GET, path: v1 } }]',
        'operations[0].match.path',
        '"v1"',
        /start with \//,
      ],
      [
        `operations: [{ name: a, ${match}, idempotency: { inDoubt: guess } }]`,
        'operations[0].idempotency.inDoubt',
        '"guess"',
        /"hold"/,
      ],
      [
        `operations: [{ name: a, ${match}, idempotency: { release: [200] } }]`,
        'operations[0].idempotency.release[0]',
        '200',
        />=400/,
      ],
      [
        'operations: [{ name: a, match: { method: POST, path: /, where: {} } }]',
        `${MATCH}.where`,
        'the value',
        /one member/,
      ],
      [
        'operations: [{ name: a, match: { method: POST, path: /, body: {} } }]',
        `${MATCH}.body`,
        'the value',
        /one member/,
      ],
      [
        'operations: [{ name: a, match: { method: POST, path: /, where: { a: 1 } } }]',
        `${MATCH}.where.a`,
        '1',
        /string/,
      ],
      ['operations: [{ name: a, match: { method: [], path: / } }]', `${MATCH}.method`, 'the value', />=1/],
      [
        'operations: [{ name: a, match: { method: [POST, put], path: / } }]',
        `${MATCH}.method[1]`,
        '"put"',
        /capitals/,
      ],
      [`operations: [{ name: a, ${pathed('/v1/{id}/x')} }]`, `${MATCH}.path`, '"/v1/{id}/x"', /braces.*:id/],
      [
        `operations: [{ name: a, ${pathed('/v1{/x{/y}}')} }]`,
        `${MATCH}.path`,
        '"/v1{/x{/y}}"',
        /braces.*:id/,
      ],
      [
        `operations: [{ name: a, ${pathed('/v1/:')} }]`,
        `${MATCH}.path`,
        '"/v1/:"',
        /not a valid path pattern of Express/,
      ],
      [
        `operations: [{ name: a, ${pathed('/v1/*')} }]`,
        `${MATCH}.path`,
        '"/v1/*"',
        /not a valid path pattern of Express/,
      ],
      [
        `operations: [{ name: a, ${pathed('/v1/(a)')} }]`,
        `${MATCH}.path`,
        '"/v1/(a)"',
        /not a valid path pattern of Express/,
      ],
      [
        'idempotency: { undeclared: allow }',
        'idempotency.undeclared',
        '"allow"',
        /"protect"\|"pass"\|"refuse"/,
      ],
      [`operations: [{ name: other, ${match} }]`, 'operations[0].name', '"other"', /must not be/],
      [`operations: [{ name: undeclared, ${match} }]`, 'operations[0].name', '"undeclared"', /must not be/],
      [`operations: [{ name: passthrough, ${match} }]`, 'operations[0].name', '"passthrough"', /must not be/],
      [`operations: [{ name: none, ${match} }]`, 'operations[0].name', '"none"', /must not be/],
    ];
    for (const [text, path, value, allowed] of cases) {
      const [line = '', ...more] = mistakesIn(`${UPSTREAM}${text}`);
      expect(more, text).toEqual([]);
      expect(line, text).toMatch(/^gateway\.yaml: /);
      const [found, rule = ''] = line.slice('gateway.yaml: '.length).split(' is not allowed: ');
      expect(found, text).toBe(`${path}: ${value}`);
      expect(rule, text).toMatch(allowed);
    }
  });

  it('names the scheme that an address must have', () => {
    const cases: [text: string, scheme: string][] = [
      ['upstream: { url: "ftp://payments.internal" }', 'http'],
      [`${UPSTREAM}store: { kind: redis, url: "http://redis.internal" }`, 'redis'],
      [`${UPSTREAM}store: { kind: redis, url: "redis.internal:6379" }`, 'redis'],
      [`${UPSTREAM}store: { kind: redis, url: "redis://r" }\nlock: { nodes: ["http://a"] }`, 'redis'],
    ];
    for (const [text, scheme] of cases) expect(mistakesIn(text).join('\n'), text).toContain(`${scheme}://`);
  });

  it('says that the address of the backend must be an origin', () => {
    for (const url of [
      'not an address',
      '',
      'payments.internal:9000',
      'http://payments.internal/v1',
      'http://payments.internal/?a',
      'http://u:p@payments.internal',
      'ftp://payments.internal',
    ])
      expect(mistakesIn(`upstream: { url: "${url}" }`).join('\n'), url).toContain(
        'gateway.yaml: upstream.url: the value is not allowed: must be an origin',
      );
  });

  it('says that upstream.url is missing, the only option without a default', () => {
    for (const text of ['', '{}', '# nothing\n', 'workers: 1', 'upstream: {}']) {
      expect(mistakesIn(text), text).toEqual([
        expect.stringMatching(/^gateway\.yaml: upstream\.url: is missing: /),
      ]);
    }
    expect(mistakesIn('upstream:\n')).toEqual([expect.stringMatching(/^gateway\.yaml: upstream(\.url)?: /)]);
  });

  it('has one line for each mistake of the file', () => {
    const text = 'upstream: { url: "http://a/b" }\nlisten: { port: x }\nwrokers: 2\nlog: { level: all }';
    const paths = mistakesIn(text).map((line) => line.split(': ')[1]);
    expect(paths.sort()).toEqual(['listen.port', 'log.level', 'upstream.url', 'wrokers']);
  });

  it('names an option that does not exist', () => {
    const cases: [text: string, path: string, hint: string, place: string][] = [
      ['wrokers: 2', 'wrokers', '; is it workers?', 'line 2, column 1'],
      ['listen:\n  prot: 1', 'listen.prot', '; is it port?', 'line 3, column 3'],
      ['limits: { inflight: 1 }', 'limits.inflight', '; is it inFlight?', 'line 2, column 11'],
      ['store: { kind: sqlite, url: "redis://a" }', 'store.url', '', 'line 2, column 24'],
      ['store: { kind: redis, url: "redis://a", path: ./data }', 'store.path', '', 'line 2, column 41'],
      ['auth: { keys: { source: file, file: a } }', 'auth.keys.file', '', 'line 2, column 31'],
      [`operations: [{ name: a, key: optional, ${match} }]`, 'operations[0].key', '', 'line 2, column 25'],
      [
        'operations: [{ name: a, match: { methd: [POST], method: POST, path: / } }]',
        `${MATCH}.methd`,
        '; is it method?',
        'line 2, column 34',
      ],
      [
        'operations: [{ name: a, match: { method: POST, path: /, unreadableBody: pass } }]',
        `${MATCH}.unreadableBody`,
        '; it was removed: such requests are forwarded, and protected if they have a key',
        'line 2, column 57',
      ],
      ['__proto__: { a: 1 }', '__proto__', '', 'line 2, column 1'],
    ];
    for (const [text, path, hint, place] of cases)
      expect(mistakesIn(`${UPSTREAM}${text}`)).toEqual([
        `gateway.yaml: ${path}: is not an option${hint} (${place})`,
      ]);
  });

  it('has the present name of an option that an earlier version called otherwise', () => {
    const cases: [text: string, path: string, name: string][] = [
      ['idempotency: { settleRetryMs: 1 }', 'idempotency.settleRetryMs', 'completeRetryMs'],
      ['shutdown: { settleMs: 1000 }', 'shutdown.settleMs', 'completeMs'],
      [lookingUp('settled: [200]'), `${LOOKUP}.settled`, 'completed'],
      [lookingUp('settledStatus: 201'), `${LOOKUP}.settledStatus`, 'completedStatus'],
    ];
    for (const [text, path, name] of cases)
      expect(mistakesIn(`${UPSTREAM}${text}`)).toEqual([
        expect.stringContaining(
          `gateway.yaml: ${path}: is not an option; it is now called ${name} (line 2, `,
        ),
      ]);
  });

  it('names the store that replaced lmdb', () => {
    for (const text of ['store: { kind: lmdb }', 'store: { kind: lmdb, path: ./data, timeoutMs: 500 }']) {
      const [line = '', ...more] = mistakesIn(`${UPSTREAM}${text}`);
      expect(more).toEqual([]);
      expect(line).toMatch(/^gateway\.yaml: store\.kind: "lmdb" is not allowed: .*'sqlite'/);
      expect(line).toMatch(/ \(the embedded store is now called sqlite\)$/);
    }
  });

  it('says in one line, without repeating the text, that a file is not a mapping', () => {
    for (const text of ['- a', 'just words', '42']) {
      const [line = '', ...more] = mistakesIn(text);
      expect(more, text).toEqual([]);
      expect(line).toMatch(/^gateway\.yaml: \w/);
      expect(line).not.toContain(text);
    }
  });
});

describe('a file that is not valid YAML', () => {
  it('is refused in one line that names the position', () => {
    const cases: [text: string, position: RegExp][] = [
      ['listen: { port: 1', /line 1/],
      ['listen: [1\nworkers: 2', /line 2/],
      [`${UPSTREAM}${UPSTREAM}`, /unique.* line 2/],
      [`${UPSTREAM}---\n${UPSTREAM}`, /multiple documents/],
      [`${UPSTREAM}listen: { port: @x }`, /line 2/],
      [`${UPSTREAM}\tworkers: 1`, /line 2/],
    ];
    for (const [text, position] of cases) {
      const lines = mistakesIn(text);
      expect(lines, text).toHaveLength(1);
      expect(lines[0], text).toMatch(/^gateway\.yaml: is not valid YAML: /);
      expect(lines[0], text).toMatch(position);
    }
  });

  it('is refused if an alias has no anchor', () => {
    const lines = mistakesIn(`${UPSTREAM}log: { level: *level }`);
    expect(lines).toEqual([expect.stringMatching(/^gateway\.yaml: is not valid YAML: .*alias/i)]);
  });

  it('is refused if nested aliases multiply', () => {
    const tenfold = (name: string, of: string) => `${name}: &${name} [${Array(10).fill(of).join(', ')}]\n`;
    const bomb = ['a', 'b', 'c', 'd'].reduce(
      (text, name, at, names) => text + tenfold(name, at === 0 ? 'x' : `*${names[at - 1]}`),
      '',
    );
    const lines = mistakesIn(`${UPSTREAM}${bomb}`);
    expect(lines).toEqual([expect.stringMatching(/^gateway\.yaml: is not valid YAML: .*alias/i)]);
  });
});

describe('a valid file', () => {
  it('can use anchors', () => {
    const { limits } = parseConfig(`${UPSTREAM}limits: { bodyBytes: &n 2048, headerBytes: *n }`, {});
    expect(limits).toMatchObject({ bodyBytes: 2048, headerBytes: 2048 });
  });
});
