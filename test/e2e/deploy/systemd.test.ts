import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { NODE_FLAGS, NODE_OPTIONS } from '../../../scripts/node-flags.ts';
import { withdraw } from '../../support/client.ts';
import { run } from '../../support/command.ts';
import {
  configFile,
  parsedConfig,
  shutdownWithinMs,
  temporaryFolder,
  testConfig,
} from '../../support/config.ts';
import { freePort } from '../../support/free-port.ts';
import { read } from '../../support/repository.ts';
import { MAIN, spawnGateway } from '../../support/spawn.ts';
import { openSandbox } from '../../support/stack.ts';
import { begin } from '../../support/tour.ts';
import { until } from '../../support/until.ts';

const UNIT = read('deploy/systemd/oncegate.service');
const TEMPLATE = read('deploy/systemd/oncegate@.service');

/** The units in a folder of their own, with a program that is installed: systemd-analyze refuses others. */
function analyze(name: string, ...args: string[]): { status: number | null; said: string } {
  const folder = temporaryFolder();
  for (const unit of ['oncegate.service', 'oncegate@.service', 'oncegate.socket'])
    writeFileSync(
      join(folder, unit),
      read(`deploy/systemd/${unit}`)
        .replaceAll('/opt/oncegate/node_modules/.bin/oncegate', '/bin/true')
        .replace(/^#Service=/m, name.includes('@') ? 'Service=' : '#'),
    );
  const file = join(folder, name);
  const { status, stdout, stderr } = spawnSync('systemd-analyze', [...args, file], { encoding: 'utf8' });
  return { status, said: stdout + stderr };
}

it.each(['oncegate.service', 'oncegate.socket', 'oncegate@8081.service'])(
  '%s is one that systemd accepts without a complaint',
  (name) => {
    expect(analyze(name, 'verify')).toEqual({ status: 0, said: '' });
  },
);

it('an instance of the template differs from the unit by its name, its admin port and its note of the store', () => {
  const settingsOf = (text: string) => text.split('\n').filter((line) => !/^#|^$/.test(line));
  const [own, common] = [settingsOf(TEMPLATE), settingsOf(UNIT)];
  expect(own.filter((line) => !common.includes(line))).toEqual([
    'Description=oncegate, the idempotency gateway for payments, with the admin port %i',
    'Sockets=oncegate.socket',
    'Environment=ONCEGATE_ADMIN_PORT=%i ONCEGATE_IDENTITY_FILE=/var/lib/oncegate/store-identity-%i.json',
  ]);
  expect(common.filter((line) => !own.includes(line))).toEqual([
    'Description=oncegate, the idempotency gateway for payments',
  ]);
});

it('the unit is hardened', () => {
  const { said } = analyze('oncegate.service', 'security', '--offline=true');
  const [, exposure] = /Overall exposure level for oncegate.service: ([\d.]+)/.exec(said) ?? [];
  expect(Number(exposure)).toBeLessThan(2);
  expect(UNIT).toMatch(/^LimitCORE=0$/m);
});

it('the unit starts Node with the flags of the benchmark', () => {
  const [, own] = /^ExecStart=\/usr\/bin\/env node (\S+) /m.exec(UNIT) ?? [];
  expect([...NODE_OPTIONS, own]).toEqual(NODE_FLAGS);
});

it('the unit starts a gateway in which no signal opens a debugger', async () => {
  const [, options = ''] = /^Environment=.*"NODE_OPTIONS=([^"]*)"$/m.exec(UNIT) ?? [];
  expect(options.split(' ')).toEqual(NODE_OPTIONS);
  const sandbox = await openSandbox();
  const gateway = await spawnGateway(testConfig(temporaryFolder(), sandbox.url), { NODE_OPTIONS: options });
  process.kill(gateway.pid, 'SIGUSR1');
  for (const key of ['a', 'b']) expect((await withdraw(gateway.url, { key })).status).toBe(201);
  await gateway.end();
  expect(gateway.output()).not.toMatch(/debugger|inspector/i);
});

it('the unit starts it again as often as it takes, except after a mistake in the configuration', async () => {
  // systemd looks at the exit code of ExecStart only, so a check in ExecStartPre would be repeated, and give up after five times.
  expect(UNIT).toMatch(/^Restart=always$/m);
  expect(UNIT).toMatch(/^StartLimitIntervalSec=0$/m);
  expect(UNIT).not.toMatch(/^ExecStartPre=/m);
  const [, last] = /^RestartPreventExitStatus=(\d+)$/m.exec(UNIT) ?? [];
  const file = join(temporaryFolder(), 'gateway.yaml');
  writeFileSync(file, 'upstream: { url: "http://127.0.0.1:1" }\nlistn: {}\n');
  const [, args = ''] = /^ExecStart=.+\/oncegate (.+)$/m.exec(UNIT) ?? [];
  const { code } = await run(args.replace('/etc/oncegate/gateway.yaml', file).split(' '));
  expect(code).toBe(Number(last));
});

it('the unit gives the gateway more time to stop than it takes', () => {
  const [, seconds] = /^TimeoutStopSec=(\d+)$/m.exec(UNIT) ?? [];
  const config = parsedConfig({ upstream: { url: 'http://127.0.0.1:1' } });
  expect(Number(seconds) * 1000).toBeGreaterThan(shutdownWithinMs(config));
});

it('systemd’s own program starts a gateway with the first connection to its socket', async () => {
  const sandbox = await openSandbox();
  const file = configFile(testConfig(temporaryFolder(), sandbox.url));
  const port = await freePort();
  const program = ['systemd-socket-activate', '-l', `127.0.0.1:${port}`, process.execPath, MAIN];
  const gateway = begin(['serve', '--config', file], { program });
  const url = `http://127.0.0.1:${port}`;
  const answer = await until(() => withdraw(url, { key: 'a' }).catch(() => undefined));
  expect(answer.status).toBe(201);
  expect(await gateway.end('SIGTERM')).toEqual([0, null]);
});
