import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { parseConfig } from '../../src/config/load.ts';
import { mistakesIn, UPSTREAM } from '../support/config-lines.ts';

const read = (path: string) => readFileSync(fileURLToPath(new URL(`../../${path}`, import.meta.url)), 'utf8');
const onHost = (host: string, token = '') =>
  mistakesIn(`${UPSTREAM}admin: { host: "${host}"${token && `, token: "${token}"`} }`);

describe('an admin port without a token', () => {
  it('is refused on 0.0.0.0 and on all other addresses beyond loopback', () => {
    for (const host of [
      '0.0.0.0',
      '::',
      '10.0.0.7',
      '128.0.0.1',
      '::ffff:10.0.0.7',
      'fe80::1%eth0',
      'gateway.internal',
      '127.0.0.1.example.com',
      'localhost.example.com',
    ]) {
      expect(onHost(host)).toEqual([
        `gateway.yaml: admin.token: is required when admin.host is not a loopback address, because everyone who reaches ${host} could read the metrics`,
      ]);
      expect(onHost(host, 'an-admin-token-of-some-length'), host).toEqual([]);
    }
  });

  it('is allowed on loopback addresses', () => {
    for (const host of ['127.0.0.1', '127.3.2.1', '::1', '0:0:0:0:0:0:0:1', 'localhost', 'LocalHost'])
      expect(onHost(host), host).toEqual([]);
  });

  it('is refused if the address comes from the environment', () => {
    const admin = 'admin: { host: "$' + '{HOST}" }';
    expect(mistakesIn(`${UPSTREAM}${admin}`, { HOST: '10.0.0.7' })).toEqual([
      expect.stringContaining('admin.token: is required'),
    ]);
  });
});

describe('the default of the admin port', () => {
  const { host, port } = parseConfig(UPSTREAM, {}).admin;

  it('is loopback, and not the port of Prometheus', () => {
    expect({ host, port }).toEqual({ host: '127.0.0.1', port: 8081 });
  });

  it('is the port that the other files name', () => {
    const { scrape_configs } = parse(read('config/prometheus.yaml'));
    expect(scrape_configs[0].static_configs[0].targets).toEqual([`${host}:${port}`]);
    expect(parse(read('config/sandbox.yaml')).admin).toEqual({ host, port });
    expect(read('Dockerfile')).toContain(`fetch('http://${host}:${port}/healthz')`);
    expect(read('Dockerfile')).toMatch(new RegExp(`^EXPOSE \\d+ ${port}$`, 'm'));
    expect(read('docs/operations.md')).toContain(`${host}:${port}`);
  });
});
