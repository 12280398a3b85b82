import { describe, expect, it } from 'vitest';
import { mistakesIn, UPSTREAM } from '../support/config-lines.ts';

const SECRET = 'hunter2-hunter2-hunter2';

describe('the message about a mistake', () => {
  it('never contains a secret', () => {
    const cases: [mistake: string, text: string][] = [
      ['a token that is too short', `${UPSTREAM}admin: { token: hunter2 }`],
      ['a token that is a list', `${UPSTREAM}admin: { token: [${SECRET}] }`],
      ['a pepper that is too short', `${UPSTREAM}auth: { pepper: hunter2 }`],
      [
        'a header that cannot be sent',
        `${UPSTREAM}auth: { forward: replace, replaceWith: "Bearer ${SECRET} " }`,
      ],
      ['a header without forward: replace', `${UPSTREAM}auth: { replaceWith: "Bearer ${SECRET}" }`],
      ['an address of the backend with a password', `upstream: { url: "http://user:${SECRET}@payments" }`],
      ['an address of another kind', `${UPSTREAM}store: { kind: redis, url: "http://:${SECRET}@redis" }`],
      ['a malformed address', `${UPSTREAM}store: { kind: redis, url: ":${SECRET}@redis" }`],
      ['a list of addresses', `${UPSTREAM}store: { kind: redis, url: ["redis://:${SECRET}@redis"] }`],
      [
        'lock nodes',
        `${UPSTREAM}store: { kind: redis, url: "redis://a" }\nlock: { nodes: ["x://:${SECRET}@b"] }`,
      ],
      [
        'lock nodes that are not a list',
        `${UPSTREAM}store: { kind: redis, url: "redis://a" }\nlock: { nodes: "redis://:${SECRET}@b" }`,
      ],
      ['an address where its section belongs', `upstream: "http://user:${SECRET}@payments"`],
      ['an address where the store belongs', `${UPSTREAM}store: "redis://:${SECRET}@redis"`],
      ['an address where the lock belongs', `${UPSTREAM}lock: "redis://:${SECRET}@redis"`],
      ['a token where its section belongs', `${UPSTREAM}admin: ${SECRET}`],
      ['a pepper where its section belongs', `${UPSTREAM}auth: ${SECRET}`],
      ['a key where the key source belongs', `${UPSTREAM}auth: { keys: ${SECRET} }`],
      ['cluster nodes', `${UPSTREAM}store: { kind: redis, cluster: ["x://:${SECRET}@b"] }`],
      [
        'cluster nodes that are not a list',
        `${UPSTREAM}store: { kind: redis, cluster: "redis://:${SECRET}@b" }`,
      ],
      [
        'sentinels that are not a section',
        `${UPSTREAM}store: { kind: redis, sentinels: "redis://:${SECRET}@b" }`,
      ],
      ['sentinel nodes', `${UPSTREAM}store: { kind: redis, sentinels: { name: a, nodes: ["${SECRET}"] } }`],
      [
        'a password that is a list',
        `${UPSTREAM}store: { kind: redis, cluster: ["redis://a"], password: [${SECRET}] }`,
      ],
      [
        'a password in addition to an address',
        `${UPSTREAM}store: { kind: redis, url: "redis://a", password: ${SECRET} }`,
      ],
      [
        'an encryption key that is too short',
        `${UPSTREAM}store: { kind: sqlite, encryption: { keys: [{ id: a, secret: ${SECRET} }] } }`,
      ],
      ['an encryption key as its section', `${UPSTREAM}store: { kind: sqlite, encryption: ${SECRET} }`],
      [
        'an encryption key in place of its id',
        `${UPSTREAM}store: { kind: sqlite, encryption: { keys: [{ id: "${SECRET} ", secret: a }] } }`,
      ],
      [
        'an encryption key in place of the id of the current one',
        `${UPSTREAM}store: { kind: sqlite, encryption: { keys: [{ id: a, secret: ${'ab'.repeat(32)} }], current: ${SECRET} } }`,
      ],
      ['a file with nothing else', SECRET],
      ['a list with nothing else', `- ${SECRET}`],
      ['a token that YAML reads as an alias', `${UPSTREAM}admin: { token: *${SECRET} }`],
      ['a token that YAML reads as a tag', `${UPSTREAM}admin: { token: !${SECRET} }`],
      ['a token that is not valid YAML', `${UPSTREAM}admin: { token: @${SECRET} }`],
      ['a token without its closing quote', `${UPSTREAM}admin: { token: "${SECRET} }`],
      ['a token that is indented by a tab', `${UPSTREAM}admin:\n\ttoken: ${SECRET}`],
      ['a token that is set twice', `${UPSTREAM}admin: { token: ${SECRET}, token: ${SECRET} }`],
    ];
    for (const [mistake, text] of cases) {
      const lines = mistakesIn(text);
      expect(lines.length, mistake).toBeGreaterThan(0);
      expect(lines.join('\n'), mistake).not.toMatch(/hunter2/);
    }
  });

  it('shows the name of an environment variable in place of its value', () => {
    const cases: [option: string, text: string][] = [
      ['a port', `${UPSTREAM}listen: { port: "\${X}" }`],
      ['workers', `${UPSTREAM}workers: "\${X}"`],
      ['a level', `${UPSTREAM}log: { level: "\${X}" }`],
      ['a prefix', `${UPSTREAM}store: { kind: redis, url: "redis://a", prefix: "a b \${X}" }`],
      ['a realm', `${UPSTREAM}auth: { realm: '"\${X}"' }`],
      ['an unknown store', `${UPSTREAM}store: { kind: "\${X}" }`],
      ['a header name', `${UPSTREAM}idempotency: { headers: ["A\${X}"] }`],
    ];
    for (const [option, text] of cases) {
      const lines = mistakesIn(text, { X: SECRET }).join('\n');
      expect(lines, option).not.toMatch(/hunter2/);
      expect(lines, option).toContain(`\${X}`);
    }
  });
});
