import { describe, expect, it } from 'vitest';
import { mistakesIn, UPSTREAM } from '../support/config-lines.ts';

const SECRET = 'hunter2-hunter2-hunter2';

describe('a mistake never repeats a secret', () => {
  it.each([
    ['a token that is too short', `${UPSTREAM}admin: { token: hunter2 }`],
    ['a token that is a list', `${UPSTREAM}admin: { token: [${SECRET}] }`],
    ['a pepper that is too short', `${UPSTREAM}auth: { pepper: hunter2 }`],
    [
      'a header that cannot be sent',
      `${UPSTREAM}auth: { forward: replace, replaceWith: "Bearer ${SECRET} " }`,
    ],
    ['a header that is not wanted', `${UPSTREAM}auth: { replaceWith: "Bearer ${SECRET}" }`],
    ['an address of the backend with a password', `upstream: { url: "http://user:${SECRET}@payments" }`],
    ['an address of another kind', `${UPSTREAM}store: { kind: redis, url: "http://:${SECRET}@redis" }`],
    ['an address that is none', `${UPSTREAM}store: { kind: redis, url: ":${SECRET}@redis" }`],
    ['a list of addresses', `${UPSTREAM}store: { kind: redis, url: ["redis://:${SECRET}@redis"] }`],
    [
      'lock nodes',
      `${UPSTREAM}store: { kind: redis, url: "redis://a" }\nlock: { nodes: ["x://:${SECRET}@b"] }`,
    ],
    [
      'one lock node',
      `${UPSTREAM}store: { kind: redis, url: "redis://a" }\nlock: { nodes: "redis://:${SECRET}@b" }`,
    ],
    ['an address where its section belongs', `upstream: "http://user:${SECRET}@payments"`],
    ['an address where the store belongs', `${UPSTREAM}store: "redis://:${SECRET}@redis"`],
    ['an address where the lock belongs', `${UPSTREAM}lock: "redis://:${SECRET}@redis"`],
    ['a token where its section belongs', `${UPSTREAM}admin: ${SECRET}`],
    ['a pepper where its section belongs', `${UPSTREAM}auth: ${SECRET}`],
    ['a key where the key source belongs', `${UPSTREAM}auth: { keys: ${SECRET} }`],
    ['cluster nodes', `${UPSTREAM}store: { kind: redis, cluster: ["x://:${SECRET}@b"] }`],
    ['one cluster node', `${UPSTREAM}store: { kind: redis, cluster: "redis://:${SECRET}@b" }`],
    ['a sentinel', `${UPSTREAM}store: { kind: redis, sentinels: "redis://:${SECRET}@b" }`],
    ['sentinel nodes', `${UPSTREAM}store: { kind: redis, sentinels: { name: a, nodes: ["${SECRET}"] } }`],
    [
      'a password that is a list',
      `${UPSTREAM}store: { kind: redis, cluster: ["redis://a"], password: [${SECRET}] }`,
    ],
    [
      'a password beside an address',
      `${UPSTREAM}store: { kind: redis, url: "redis://a", password: ${SECRET} }`,
    ],
    ['a file that holds nothing else', SECRET],
    ['a list that holds nothing else', `- ${SECRET}`],
    ['a token that YAML reads as an alias', `${UPSTREAM}admin: { token: *${SECRET} }`],
    ['a token that YAML reads as a tag', `${UPSTREAM}admin: { token: !${SECRET} }`],
    ['a token that YAML cannot read', `${UPSTREAM}admin: { token: @${SECRET} }`],
    ['a token that is not closed', `${UPSTREAM}admin: { token: "${SECRET} }`],
    ['a token behind a tabulator', `${UPSTREAM}admin:\n\ttoken: ${SECRET}`],
    ['a token that stands twice', `${UPSTREAM}admin: { token: ${SECRET}, token: ${SECRET} }`],
  ])('%s', (_, text) => {
    const lines = mistakesIn(text);
    expect(lines.length).toBeGreaterThan(0);
    expect(lines.join('\n')).not.toMatch(/hunter2/);
  });

  it.each([
    ['a port', `${UPSTREAM}listen: { port: "\${X}" }`],
    ['workers', `${UPSTREAM}workers: "\${X}"`],
    ['a level', `${UPSTREAM}log: { level: "\${X}" }`],
    ['a prefix', `${UPSTREAM}store: { kind: redis, url: "redis://a", prefix: "a b \${X}" }`],
    ['a realm', `${UPSTREAM}auth: { realm: '"\${X}"' }`],
    ['an unknown store', `${UPSTREAM}store: { kind: "\${X}" }`],
    ['a header name', `${UPSTREAM}idempotency: { headers: ["A\${X}"] }`],
  ])('what comes from the environment is shown by its name: %s', (_, text) => {
    const lines = mistakesIn(text, { X: SECRET }).join('\n');
    expect(lines).not.toMatch(/hunter2/);
    expect(lines).toContain(`\${X}`);
  });
});
