import { describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { parseConfig } from '../../src/config/load.ts';
import { mistakesIn, UPSTREAM } from '../support/config-lines.ts';
import { read } from '../support/repository.ts';

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
});

describe('the tokens of the console', () => {
  const TOKEN = 'hunter2-hunter2-hunter2';
  const mistakes = (admin: string) => mistakesIn(`${UPSTREAM}admin: ${admin}`);

  it('must be told apart by name and by value, and no message shows one', () => {
    const cases: [admin: string, mistake: RegExp][] = [
      [`{ tokens: [{ name: admin, token: ${TOKEN} }] }`, /admin\.tokens\[0\]\.name: .*must not be admin/],
      [
        `{ tokens: [{ name: Lookup, token: ${TOKEN} }] }`,
        /admin\.tokens\[0\]\.name: .*must not be admin or lookup/,
      ],
      [`{ tokens: [{ name: "a\\nb", token: ${TOKEN} }] }`, /admin\.tokens\[0\]\.name: .*must have 1 to 32/],
      [`{ tokens: [{ name: a, token: hunter2 }] }`, /admin\.tokens\[0\]\.token: /],
      [`{ tokens: [{ name: a, token: ${TOKEN}, may: [all] }] }`, /admin\.tokens\[0\]\.may\[0\]: /],
      [`{ tokens: [{ name: a, token: ${TOKEN}, only: records }] }`, /admin\.tokens\[0\]\.only: .*metrics/],
      [
        `{ tokens: [{ name: a, token: ${TOKEN}, only: metrics, may: [bodies] }] }`,
        /admin\.tokens\[0\]\.may: .*contradicts only: metrics/,
      ],
      [`{ token: ${TOKEN}, tokens: [{ name: a, token: ${TOKEN} }] }`, /tokens\[0\]\.token: .*is used twice/],
      [
        `{ tokens: [{ name: a, token: ${TOKEN} }, { name: a, token: ${TOKEN}2 }] }`,
        /tokens\[1\]\.name: .*is used twice/,
      ],
      [`{ hosts: ["gateway:8081"] }`, /admin\.hosts\[0\]: .*must be the name of a host/],
    ];
    for (const [admin, mistake] of cases) {
      const text = mistakes(admin).join('\n');
      expect(text, admin).toMatch(mistake);
      expect(text, admin).not.toContain('hunter2');
    }
    expect(mistakes(`{ tokens: [{ name: Ada, token: ${TOKEN} }, { name: b, token: ${TOKEN}2 }] }`)).toEqual(
      [],
    );
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
    expect(parse(read('src/sandbox/gateway.yaml')).admin).toEqual({ host, port });
    expect(read('Dockerfile')).toMatch(new RegExp(`^EXPOSE \\d+ ${port}$`, 'm'));
    expect(read('docs/operations.md')).toContain(`${host}:${port}`);
  });
});
