import { writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { loadConfig, parseConfig } from '../../src/config/load.ts';
import { temporaryFolder } from '../support/config.ts';
import { mistakesIn, UPSTREAM } from '../support/config-lines.ts';

const PEPPER = 'a-pepper-of-some-length';

describe(`a placeholder \${NAME}`, () => {
  it('is replaced by the environment variable in every value, whole or in part', () => {
    const env = { HOST: 'payments.internal', PORT: '9000', PEPPER, HEADER: 'x-key', ACTION: 'pay' };
    const text = `
upstream: { url: "http://\${HOST}:\${PORT}" }
auth: { pepper: "\${PEPPER}" }
idempotency: { headers: ["\${HEADER}"] }
operations: [{ name: pay, match: { method: POST, path: /, where: { action: "\${ACTION}" } } }]`;
    const config = parseConfig(text, env);
    expect(config.upstream.url).toBe('http://payments.internal:9000');
    expect(config.auth.pepper).toBe(PEPPER);
    expect(config.idempotency.headers).toEqual(['x-key']);
    expect(config.operations[0]?.match.where).toEqual({ action: 'pay' });
  });

  it('becomes a number for ports', () => {
    const text = `${UPSTREAM}listen: { port: "\${A}" }\nadmin: { port: "\${B}" }`;
    const { listen, admin } = parseConfig(text, { A: '18080', B: '0' });
    expect([listen.port, admin.port]).toEqual([18_080, 0]);
  });

  it('is refused as a port unless its value has only digits', () => {
    for (const value of ['80 80', '0x1F90', '8e3', ' 8080', '-1', '8080.0', ''])
      expect(mistakesIn(`${UPSTREAM}listen: { port: "\${A}" }`, { A: value }), value).toHaveLength(1);
  });

  it('stays text for options that are text, also if it has only digits', () => {
    const text = `${UPSTREAM}auth: { pepper: "\${P}" }\nstore: { kind: redis, url: "redis://a", prefix: "\${N}" }`;
    const config = parseConfig(text, { P: '1234567890123456', N: '12' });
    expect(config.auth.pepper).toBe('1234567890123456');
    expect(config.store).toMatchObject({ prefix: '12' });
  });

  it('is reported in one line for each variable that is missing or empty', () => {
    const text = `upstream: { url: "\${A}" }\nauth: { pepper: "\${B}" }\nadmin: { token: "\${EMPTY}" }\nstore: { path: "\${A}" }`;
    const lines = mistakesIn(text, { EMPTY: '' });
    expect(lines).toEqual(['A', 'B', 'EMPTY'].map((name) => `gateway.yaml: the environment has no ${name}`));
  });

  it('is refused if it is malformed, and never taken literally', () => {
    // Taken literally, it would be a token that everyone can read in the file.
    for (const value of [`\${LEVEL:-info}`, `\${LE-VEL}`, `\${1LEVEL}`, `\${}`, `\${LEVEL`, `\${ LEVEL }`])
      expect(
        mistakesIn(`${UPSTREAM}admin: { token: "${value}-and-some-more" }`, { LEVEL: 'info' }),
        value,
      ).toEqual([expect.stringMatching(/^gateway\.yaml: admin\.token: .*\$\{/)]);
  });

  it('has a value that is taken as it is: neither placeholders nor YAML in it count', () => {
    for (const value of [`\${B}-and-some-more`, 'x-and-some-more }, limits: { 7'])
      expect(parseConfig(`${UPSTREAM}auth: { pepper: "\${A}" }`, { A: value, B: 'x' }).auth.pepper).toBe(
        value,
      );
  });
});

describe('a configuration file', () => {
  it('that cannot be read is named with the reason', () => {
    expect(() => loadConfig('/nowhere/gateway.yaml', {})).toThrow(
      '/nowhere/gateway.yaml: cannot be read (ENOENT)',
    );
    expect(() => loadConfig(tmpdir(), {})).toThrow(`${tmpdir()}: cannot be read (EISDIR)`);
  });

  it('can have a byte order mark and Windows line ends', () => {
    const file = join(temporaryFolder(), 'gateway.yaml');
    writeFileSync(file, `\ufeff${UPSTREAM}listen: { port: 3 }\n`.replaceAll('\n', '\r\n'));
    expect(loadConfig(file, {}).listen.port).toBe(3);
  });
});
