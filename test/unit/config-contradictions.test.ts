import { describe, expect, it } from 'vitest';
import { parseConfig } from '../../src/config/load.ts';
import { mistakesIn, UPSTREAM } from '../support/config-lines.ts';
import { eachRow } from '../support/each-row.ts';

const operation = (name: string, where?: string, { path = '/v1/index.php', method = 'POST' } = {}) =>
  `  - { name: ${name}, match: { method: ${method}, path: "${path}"${where ? `, where: { ${where} }` : ''} } }\n`;
const operations = (...list: string[]) => `operations:\n${list.join('')}`;
const report = (method: string, where = '') => {
  const match = `match: { method: ${method}, path: /v1/report${where} }`;
  return `operations: [{ name: report, ${match}, idempotency: { key: required } }]`;
};

/** The times of an execution are 500, 2000, 30,000 and 10,000 ms. */
const retention = (retentionMs: number) =>
  `upstream: { url: "http://a", queueTimeoutMs: 500 }\nidempotency: { retentionMs: ${retentionMs} }`;

/** The backend's section may be left out. */
const mistakesOf = (text: string) =>
  mistakesIn(text.startsWith('upstream:') ? text : `${UPSTREAM}${text}`).map((line) =>
    line.replace('gateway.yaml: ', ''),
  );

describe('a configuration is refused', () => {
  it('with two options that contradict each other', () => {
    const redis = (more: string) => `store: { kind: redis, ${more} }`;
    const url = 'url: "redis://a"';
    const cluster = 'cluster: ["redis://b"]';
    const sentinels = 'sentinels: { name: m, nodes: ["redis://c"] }';
    const same = operations(operation('pay', 'action: a'), operation('pay', 'action: b'));
    const cases: [text: string, mistake: RegExp][] = [
      ['lock: { nodes: ["redis://a"] }', /^lock\.nodes: .*redis store/],
      [`${redis(url)}\nlock: { nodes: ["redis://a", "redis://b"] }`, /^lock\.nodes: .*odd number/],
      ...['', `${url}, ${cluster}`, `${url}, ${cluster}, ${sentinels}`].map((addresses): [string, RegExp] => [
        redis(addresses),
        /^store\.url: .*exactly one of url, sentinels and cluster/,
      ]),
      ...['username: a', 'password: a', 'tls: true'].map((more): [string, RegExp] => [
        redis(`${url}, ${more}`),
        /^store\.url: .*already contains/,
      ]),
      [redis(`${url}, tls: { ca: /ca }`), /^store\.\S+: .*rediss/],
      [redis('url: "rediss://a", tls: { cert: /cert }'), /^store\.tls\S*: .*cert and key/],
      [redis('cluster: ["redis://a", "rediss://b"]'), /^store\.\S+: .*rediss/],
      [
        redis(`${cluster}, durability: { replicas: 1 }`),
        /^store\.durability\.replicas: 1 is not allowed: .*cluster/,
      ],
      [same, /^operations\[1\]\.name: .*"pay" is declared twice/],
      ['limits: { bufferedBytes: 1000000 }', /^limits\.bufferedBytes: .*limits\.bodyBytes \(1048576\)/],
      ['auth: { forward: replace }', /^auth\.replaceWith: /],
      ['auth: { replaceWith: "Bearer b" }', /^auth\.replaceWith: /],
      ['auth: { forward: strip, replaceWith: b }', /^auth\.replaceWith: /],
      ...[
        ...['x-request-id', 'authorization', 'x-forwarded-for', 'connection', 'x-merchant-code'],
        ...['accept-encoding', 'traceparent'],
      ].map((name): [string, RegExp] => [
        `idempotency: { headers: [idempotency-key, ${name}] }`,
        /^idempotency\.headers\[1\]: .*cannot carry a key/,
      ]),
      ...[
        ...['x_merchant_code', 'x_merchant-code', 'x_request_id', 'x_service_idempotency', 'x_real_ip'],
        ...['x_http_method_override', 'x_rewrite_url'],
      ].map((name): [string, RegExp] => [
        `headers: { keepUnderscore: [api_version, ${name}] }`,
        /^headers\.keepUnderscore\[1\]: .*could forge x-/,
      ]),
      [report('[GET, HEAD]'), /^operations\[0\]\.idempotency\.key: .*has no effect/],
      // The other option is at its default.
      ['lock: { leaseMs: 1500 }', /^upstream\.connectTimeoutMs: must be less than lock\.leaseMs \(1500\)$/],
      ['lock: { leaseMs: 2000 }', /^upstream\.connectTimeoutMs: must be less than lock\.leaseMs \(2000\)$/],
      [
        retention(42_500),
        /^idempotency\.retentionMs: 42500 is not allowed: .* an execution can take: .* \(42500\)$/,
      ],
      [
        'idempotency: { inDoubtRetentionMs: 86399999 }',
        /^idempotency\.inDoubtRetentionMs: 86399999 .* less than idempotency\.retentionMs \(86400000\)$/,
      ],
    ];
    eachRow(cases, ([text, mistake]) => {
      expect(mistakesOf(text)).toEqual([expect.stringMatching(mistake)]);
    });
  });

  it('but not at the bound that another option sets', () => {
    const texts = [
      ...['lock: { leaseMs: 2001 }', retention(42_501)],
      ...['idempotency: { inDoubtRetentionMs: 86400000 }', report('[GET, POST]')],
      report('GET', ', where: { action: pay }'),
    ];
    for (const text of texts) expect(mistakesOf(text), text).toEqual([]);
  });

  it('with encryption keys that are not 32 bytes, are there twice, or are not the current one', () => {
    const [a, b] = ['ab'.repeat(32), `${'b'.repeat(43)}=`];
    const key = (id: string, secret: string) => `{ id: ${id}, secret: "${secret}" }`;
    const keys = (list: string[], more = '') => `encryption: { keys: [${list.join(', ')}]${more} }`;
    const cases: [text: string, path: string, why: string][] = [
      [keys([]), 'keys', 'Too small: expected array to have >=1 items'],
      [keys([key('a', a.slice(2))]), 'keys[0].secret', 'must be 32 bytes'],
      [keys([key('a', 'a password of 32 characters.....')]), 'keys[0].secret', 'must be 32 bytes'],
      [keys([key('none', a)]), 'keys[0].id', 'must not be none'],
      [keys([key('"a b"', a)]), 'keys[0].id', 'must be 1 to 32 letters, digits'],
      [keys([key('a', a), key('a', b)]), 'keys[1].id', 'is the id of an earlier key'],
      [keys([key('a', a), key('b', a)]), 'keys[1].secret', 'is the secret of an earlier key'],
      [keys([key('a', a)], ', current: b'), 'current', 'must be the id of one of the keys, or none'],
    ];
    for (const [text, path, why] of cases)
      for (const kind of ['kind: sqlite', 'kind: redis, url: "redis://a"'])
        expect(mistakesOf(`store: { ${kind}, ${text} }`), text).toEqual([
          expect.stringContaining(`store.encryption.${path}: the value is not allowed: ${why}`),
        ]);
    const ring = keys([key('a', a), key('b', b)], ', current: none');
    expect(
      parseConfig(`${UPSTREAM}store: { kind: sqlite, ${ring} }`, {}).store.encryption?.keys,
    ).toHaveLength(2);
  });

  it('with a public path that would open an operation', () => {
    const list = operations(
      operation('balance', undefined, { method: 'GET', path: '/v2/get_balance' }),
      operation('refund', undefined, { path: '/v1/payments/:id/refund' }),
      operation('cors', undefined, { method: 'OPTIONS', path: '/v1/cors' }),
    );
    const opened = (method: string, path: string) =>
      mistakesOf(`${list}auth: { public: [{ method: ${method}, path: "${path}" }] }`);
    const refusal = (path: string, name: string) =>
      `auth.public[0].path: "${path}" is not allowed: would open the operation "${name}" to requests without a secret key`;
    for (const [method, path, name] of [
      ['GET', '/v2/get_balance', 'balance'],
      ['POST', '/v2/get_balance', 'balance'],
      ['GET', '/V2/Get_Balance/', 'balance'],
      ['GET', '/v2/get_balance.json', 'balance'],
      ['GET', '/v2/:name', 'balance'],
      ['GET', '/:a{/:b}', 'balance'],
      ['POST', '/v1/payments/p-1/refund', 'refund'],
      ['POST', '/v1/payments/:payment/:what', 'refund'],
      ['OPTIONS', '/v1/:any', 'cors'],
      ['[OPTIONS, GET]', '/v2/:name', 'balance'],
    ] as const)
      expect(opened(method, path), `${method} ${path}`).toContain(refusal(path, name));
    for (const [method, path] of [
      ['OPTIONS', '/v2/{*path}'],
      ['GET', '/v2/get_balances'],
      ['POST', '/v1/payments/:id/refund/callback'],
    ] as const)
      expect(opened(method, path), `${method} ${path}`).toEqual([]);
  });

  it('with an operation that never applies, because an earlier one matches all its requests', () => {
    const cases: [what: string, first: string, second: string][] = [
      ['the same path without where', operation('a'), operation('b')],
      ['first without where, then with it', operation('a'), operation('b', 'action: b')],
      ['the same member and value', operation('a', 'action: a'), operation('b', 'action: a')],
      ['one member more', operation('a', 'action: a'), operation('b', 'action: a, kind: b')],
      [
        'one method less',
        operation('a', '', { method: '[POST, PUT]' }),
        operation('b', '', { method: 'PUT' }),
      ],
      [
        'the same pattern',
        operation('a', '', { path: '/v1/:id' }),
        operation('b', 'action: b', { path: '/v1/:id' }),
      ],
      [
        'a pattern that matches the path',
        operation('a', '', { path: '/v1/:file' }),
        operation('b', 'action: b'),
      ],
    ];
    for (const [what, first, second] of cases)
      expect(mistakesOf(operations(first, second)), what).toEqual([
        'operations[1].match: the value is not allowed: matches only requests that "a" matches first: distinguish them by where, or declare it earlier',
      ]);
  });

  it('but not with one that leaves requests to a later operation', () => {
    const pattern = (path: string, where?: string) => operation('a', where, { path });
    for (const list of [
      [operation('b'), pattern('/v1/:file')],
      [pattern('/v1/:file', 'action: a'), operation('b', 'action: b')],
      [pattern('/V1/:file'), operation('b')],
      [pattern('/v1/:file'), operation('b', '', { path: '/v1/a/b' })],
      [pattern('/v1/:file'), operation('b', '', { path: '/v1/*all' })],
      [operation('a', 'action: a'), operation('b', 'action: b'), operation('c', 'kind: a')],
      [operation('d', 'action: a, kind: a'), operation('e', 'action: a')],
      [operation('a', 'action: a'), operation('f', 'action: a', { method: '[POST, PUT]' })],
      // Matches the requests that the others do not match.
      [operation('a', 'action: a'), operation('rest'), operation('put', '', { method: 'PUT' })],
    ])
      expect(mistakesOf(operations(...list))).toEqual([]);
  });
});
