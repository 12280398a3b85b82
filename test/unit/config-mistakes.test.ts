import { describe, expect, it } from 'vitest';
import { parseConfig } from '../../src/config/load.ts';
import { mistakesIn, UPSTREAM } from '../support/config-lines.ts';
import { eachRow } from '../support/each-row.ts';

const match = 'match: { method: POST, path: /v1/index.php, where: { action: a } }';
const pathed = (path: string) => `match: { method: POST, path: "${path}" }`;
const MATCH = 'operations[0].match';

describe('the message about a mistake', () => {
  const upstreamKeys = (more: string) => `auth: { keys: { source: upstream, ${more} } }`;
  const perMerchant = (limits: string) => `limits: { perMerchant: { ${limits} } }`;
  const pay = (more: string) => `operations: [{ name: pay, ${more} }]`;
  const named = (name: string) => `operations: [{ name: ${name}, ${match} }]`;

  it('has the path, the value, and what is allowed', () => {
    const cases: [text: string, value: string, allowed: RegExp][] = [
      ['listen: { port: 65536 }', 'listen.port: 65536', /<=65535/],
      ['listen: { trustedProxies: [a] }', 'listen.trustedProxies[0]: "a"', /an address, a range/],
      ['listen: { trustedProxies: [0.0.0.0/0] }', 'listen.trustedProxies[0]: "0.0.0.0/0"', /a range/],
      ['listen: { trustedProxies: [10.0.0.0/33] }', 'listen.trustedProxies[0]: "10.0.0.0/33"', /a range/],
      ['store: { kind: mysql }', 'store.kind: "mysql"', /'sqlite' \| 'redis' \| 'postgres'/],
      [
        'store: { kind: postgres, url: "postgres://p/d" }',
        'store.url: the value',
        /postgres:\/\/oncegate:password@/,
      ],
      [
        'store: { kind: postgres, url: "postgres://u:50%@p/d" }',
        'store.url: the value',
        /without parameters/,
      ],
      [
        'store: { kind: postgres, url: "postgres://u@p/d?sslmode=disable" }',
        'store.url: the value',
        /postgres:/,
      ],
      ['store: { kind: postgres, url: "postgres://u@p/d", schema: A }', 'store.schema: "A"', /lower-case/],
      ['store: { kind: redis, url: "redis://r", prefix: "a b" }', 'store.prefix: "a b"', /1 to 64 letters/],
      ['store: { kind: redis, url: "http://r" }', 'store.url: the value', /redis:\/\//],
      ['store: { kind: redis, url: "r:6379" }', 'store.url: the value', /redis:\/\//],
      // ioredis takes parameters for its own options, and would send commands a second time with this one.
      [
        'store: { kind: redis, url: "redis://r?maxRetriesPerRequest=0&autoResendUnfulfilledCommands=no" }',
        'store.url: the value',
        /without parameters/,
      ],
      ['store: { kind: redis, url: "redis://r/1?ssl=true" }', 'store.url: the value', /without parameters/],
      ['store: { kind: redis, url: "redis://r/payments" }', 'store.url: the value', /redis:\/\//],
      ['store: { kind: redis, url: "redis://u:1#2@r" }', 'store.url: the value', /redis:\/\//],
      [
        'store: { kind: redis, cluster: ["redis://r?ssl=true"] }',
        'store.cluster[0]: the value',
        /redis:\/\//,
      ],
      ...['REDISS://r', ' rediss://r'].map((url): [string, string, RegExp] => [
        `store: { kind: redis, url: "${url}" }`,
        'store.url: the value',
        /rediss:\/\/ for TLS/,
      ]),
      ['lock: { leaseMs: 600001 }', 'lock.leaseMs: 600001', /<=600000/],
      ['auth: { keys: { source: ldap } }', 'auth.keys.source: "ldap"', /one of: file/],
      [upstreamKeys('path: "//evil/"'), 'auth.keys.path: "//evil/"', /must be a path/],
      [upstreamKeys('merchantCodeAt: "a[0]"'), 'auth.keys.merchantCodeAt: "a[0]"', /names of members/],
      ['auth: { forward: replace, replaceWith: "B\\r\\nA: b" }', 'auth.replaceWith: the value', /printable/],
      ['auth: { forward: drop }', 'auth.forward: "drop"', /"keep"\|"strip"\|"replace"/],
      ['auth: { public: [/health] }', 'auth.public[0]: the value', /object/],
      ['auth: { public: [{ method: get, path: /a }] }', 'auth.public[0].method: "get"', /capitals/],
      ['auth: { public: [{ method: GET, path: "/a(b" }] }', 'auth.public[0].path: "/a(b"', /pattern/],
      ["auth: { realm: 'a\"b' }", 'auth.realm: "a\\"b"', /printable ASCII/],
      ['idempotency: { headers: [] }', 'idempotency.headers: the value', />=1/],
      ['idempotency: { headers: [X-Key] }', 'idempotency.headers[0]: "X-Key"', /lower case/],
      [
        'idempotency: { undeclared: allow }',
        'idempotency.undeclared: "allow"',
        /"protect"\|"pass"\|"refuse"/,
      ],
      [perMerchant(''), 'limits.perMerchant: the value', /must set requests, inFlight/],
      [perMerchant('requests: 1, windowMs: 1500'), 'limits.perMerchant.windowMs: 1500', /whole seconds/],
      [
        perMerchant('inFlight: 1, windowMs: 1000'),
        'limits.perMerchant.windowMs: 1000',
        /no effect without requests/,
      ],
      [
        perMerchant('requests: 1, windowMs: 60s, burst: { requests: 1, windowMs: 60s }'),
        'limits.perMerchant.burst: the value',
        /longer windowMs than requests has \(60000\)/,
      ],
      [
        perMerchant('inFlight: 1, merchants: { M-1: { burst: { requests: 1, windowMs: 2s } } }'),
        'limits.perMerchant.merchants.M-1.burst: the value',
        /no effect without requests/,
      ],
      ['log: { level: verbose }', 'log.level: "verbose"', /"fatal"\|.*"silent"/],
      ['metrics: { merchants: [M-1, other] }', 'metrics.merchants[1]: "other"', /must not be other/],
      ['metrics: { merchants: ["M 1"] }', 'metrics.merchants[0]: "M 1"', /printable/],
      ['metrics: { merchants: [M-1, M-1] }', 'metrics.merchants: the value', /twice/],
      ['headers: { keepUnderscore: [A_b] }', 'headers.keepUnderscore[0]: "A_b"', /lower case/],
      [named('Pay'), 'operations[0].name: "Pay"', /lower case/],
      ...['other', 'undeclared', 'none'].map((name): [string, string, RegExp] => [
        ...([named(name), `operations[0].name: "${name}"`, /must not be/] as const),
      ]),
      [pay('match: { method: [POST, put], path: / }'), `${MATCH}.method[1]: "put"`, /capitals/],
      [pay('match: { method: POST, path: /, where: {} }'), `${MATCH}.where: the value`, /one member/],
      [pay('match: { method: POST, path: /, where: { a: 1 } }'), `${MATCH}.where.a: 1`, /string/],
      [pay(pathed('v1')), `${MATCH}.path: "v1"`, /start with \//],
      [pay(pathed('/v1/{id}/x')), `${MATCH}.path: "/v1/{id}/x"`, /braces.*:id/],
      [pay(pathed('/v1/:')), `${MATCH}.path: "/v1/:"`, /not a valid path pattern of Express/],
    ];
    eachRow(cases, ([text, value, allowed]) => {
      const [line = '', ...more] = mistakesIn(`${UPSTREAM}${text}`);
      expect(more).toEqual([]);
      const [found, rule] = line.split(' is not allowed: ');
      expect(found).toBe(`gateway.yaml: ${value}`);
      expect(rule).toMatch(allowed);
    });
  });

  it('says that the address of the backend must be an origin', () => {
    for (const url of [
      ...['', 'payments.internal:9000', 'http://a/v1', 'http://a/?a', 'http://u:p@a', 'ftp://a'],
    ])
      expect(mistakesIn(`upstream: { url: "${url}" }`).join('\n'), url).toContain(
        'gateway.yaml: upstream.url: the value is not allowed: must be an origin such as http://payments.internal:9000, with http or https and',
      );
  });

  it('says that upstream.url is missing, the only option without a default', () => {
    for (const text of ['', '{}', '# nothing\n', 'listen: {}', 'upstream: {}']) {
      expect(mistakesIn(text), text).toEqual([
        expect.stringMatching(/^gateway\.yaml: upstream\.url: is missing: /),
      ]);
    }
    expect(mistakesIn('upstream:\n')).toEqual([expect.stringMatching(/^gateway\.yaml: upstream(\.url)?: /)]);
  });

  it('has one line for each mistake of the file', () => {
    const text = 'upstream: { url: "http://a/b" }\nlisten: { port: x }\nlimts: 2\nlog: { level: all }';
    const paths = mistakesIn(text).map((line) => line.split(': ')[1]);
    expect(paths.sort()).toEqual(['limts', 'listen.port', 'log.level', 'upstream.url']);
  });

  it('names an option that does not exist', () => {
    const cases: [text: string, path: string, hint: string, place: string][] = [
      ['limts: 2', 'limts', '; is it limits?', 'line 2, column 1'],
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
      ['__proto__: { a: 1 }', '__proto__', '', 'line 2, column 1'],
    ];
    for (const [text, path, hint, place] of cases)
      expect(mistakesIn(`${UPSTREAM}${text}`)).toEqual([
        `gateway.yaml: ${path}: is not an option${hint} (${place})`,
      ]);
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
      ['listen: [1\nlimits: 2', /line 2/],
      [`${UPSTREAM}${UPSTREAM}`, /unique.* line 2/],
      [`${UPSTREAM}---\n${UPSTREAM}`, /multiple documents/],
      [`${UPSTREAM}listen: { port: @x }`, /line 2/],
      [`${UPSTREAM}\tlimits: 1`, /line 2/],
    ];
    for (const [text, position] of cases) {
      const lines = mistakesIn(text);
      expect(lines, text).toHaveLength(1);
      expect(lines[0], text).toMatch(/^gateway\.yaml: is not valid YAML: /);
      expect(lines[0], text).toMatch(position);
    }
  });

  it('is refused if an alias has no anchor, or nested aliases multiply', () => {
    const tenfold = (name: string, of: string) => `${name}: &${name} [${Array(10).fill(of).join(', ')}]\n`;
    const bomb = ['a', 'b', 'c', 'd'].reduce(
      (text, name, at, names) => text + tenfold(name, at === 0 ? 'x' : `*${names[at - 1]}`),
      '',
    );
    for (const text of [bomb, 'log: { level: *level }'])
      expect(mistakesIn(`${UPSTREAM}${text}`)).toEqual([
        expect.stringMatching(/^gateway\.yaml: is not valid YAML: .*alias/i),
      ]);
    const { limits } = parseConfig(`${UPSTREAM}limits: { bodyBytes: &n 2048, headerBytes: *n }`, {});
    expect(limits).toMatchObject({ bodyBytes: 2048, headerBytes: 2048 });
  });
});
