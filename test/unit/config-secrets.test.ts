import { describe, expect, it } from 'vitest';
import { mistakesIn, UPSTREAM } from '../support/config-lines.ts';

const SECRET = 'hunter2-hunter2-hunter2';

describe('the message about a mistake', () => {
  it('never contains a secret', () => {
    const redis = (more: string) => `store: { kind: redis, ${more} }`;
    const encrypted = (encryption: string) => `store: { kind: sqlite, encryption: ${encryption} }`;
    const keyed = (key: string, more = '') => encrypted(`{ keys: [${key}]${more} }`);
    const match = 'match: { method: POST, path: / }';
    const looking = (lookup: string) =>
      `operations: [{ name: a, ${match}, idempotency: { inDoubt: lookup, lookup: { ${lookup} } } }]`;
    // Secrets that are too short, in the wrong place or of the wrong type.
    const cases = [
      ...['admin: { token: hunter2 }', `admin: { token: [${SECRET}] }`, 'auth: { pepper: hunter2 }'],
      `auth: { forward: replace, replaceWith: "Bearer ${SECRET} " }`,
      `auth: { replaceWith: "Bearer ${SECRET}" }`,
      ...[redis(`url: "http://:${SECRET}@redis"`), redis(`url: ":${SECRET}@redis"`)],
      redis(`url: ["redis://:${SECRET}@redis"]`),
      `${redis('url: "redis://a"')}\nlock: { nodes: ["x://:${SECRET}@b"] }`,
      `${redis('url: "redis://a"')}\nlock: { nodes: "redis://:${SECRET}@b" }`,
      ...[`store: "redis://:${SECRET}@redis"`, `lock: "redis://:${SECRET}@redis"`],
      ...[`admin: ${SECRET}`, `auth: ${SECRET}`, `auth: { keys: ${SECRET} }`],
      ...[redis(`cluster: ["x://:${SECRET}@b"]`), redis(`cluster: "redis://:${SECRET}@b"`)],
      redis(`sentinels: "redis://:${SECRET}@b"`),
      redis(`sentinels: { name: a, nodes: ["${SECRET}"] }`),
      redis(`cluster: ["redis://a"], password: [${SECRET}]`),
      looking(`path: "/{merchant}/{key}", headers: { authorization: "Bearer ${SECRET}\\a" }`),
      ...['path: "{merchant}/{key}', 'path: "/{merchant}'].map((path) => looking(`${path}?token=${SECRET}"`)),
      `tracing: { endpoint: "http://a", headers: { authorization: "Bearer ${SECRET}\\a" } }`,
      ...[`http://user:${SECRET}@a`, `http://a?token=${SECRET}`].map(
        (endpoint) => `tracing: { endpoint: "${endpoint}" }`,
      ),
      `auth: { keys: { source: upstream, path: "v2/balance?token=${SECRET}" } }`,
      redis(`url: "redis://a", password: ${SECRET}`),
      ...[encrypted(SECRET), keyed(`{ id: a, secret: ${SECRET} }`), keyed(`{ id: "${SECRET} ", secret: a }`)],
      keyed(`{ id: a, secret: ${'ab'.repeat(32)} }`, `, current: ${SECRET}`),
      // What YAML reads as an alias or a tag, or refuses.
      ...['*', '!', '!a!', '@', '"', '"\\U', 'a,'].map((sign) => `admin: { token: ${sign}${SECRET} }`),
      ...['>', '|', '> ', '"a" '].map((sign) => `admin:\n  token: ${sign}${SECRET}\n`),
      ...[`admin:\n\ttoken: ${SECRET}`, `admin: { token: ${SECRET}, token: ${SECRET} }`],
    ].map((text) => UPSTREAM + text);
    cases.push(`upstream: { url: "http://user:${SECRET}@a" }`, `upstream: "http://user:${SECRET}@a"`);
    cases.push(SECRET, `- ${SECRET}`);
    for (const text of cases) {
      const lines = mistakesIn(text);
      expect(lines.length, text).toBeGreaterThan(0);
      expect(lines.join('\n'), text).not.toMatch(/hunter2/);
    }
  });

  it('shows the name of an environment variable in place of its value', () => {
    const cases: [option: string, text: string][] = [
      ['a port', `${UPSTREAM}listen: { port: "\${X}" }`],
      ['a level', `${UPSTREAM}log: { level: "\${X}" }`],
      ['a realm', `${UPSTREAM}auth: { realm: '"\${X}"' }`],
      ['an unknown store', `${UPSTREAM}store: { kind: "\${X}" }`],
    ];
    for (const [option, text] of cases) {
      const lines = mistakesIn(text, { X: SECRET }).join('\n');
      expect(lines, option).not.toMatch(/hunter2/);
      expect(lines, option).toContain(`\${X}`);
    }
  });
});
