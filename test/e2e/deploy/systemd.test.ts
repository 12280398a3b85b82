import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { NODE_FLAGS } from '../../../scripts/node-flags.ts';
import { shutdownWithinMs } from '../../../src/gateway/gateway.ts';
import { createSandbox } from '../../../src/sandbox/sandbox.ts';
import { withdraw } from '../../support/client.ts';
import { run } from '../../support/command.ts';
import { parsedConfig, temporaryFolder, testConfig } from '../../support/config.ts';
import { spawnGateway } from '../../support/spawn.ts';

const UNIT = readFileSync(new URL('../../../deploy/systemd/oncegate.service', import.meta.url), 'utf8');

function analyze(...args: string[]): { status: number | null; said: string } {
  const file = join(temporaryFolder(), 'oncegate.service');
  // systemd-analyze refuses a unit whose program is not installed.
  writeFileSync(file, UNIT.replaceAll('/opt/oncegate/node_modules/.bin/oncegate', '/bin/true'));
  const { status, stdout, stderr } = spawnSync('systemd-analyze', [...args, file], { encoding: 'utf8' });
  return { status, said: stdout + stderr };
}

it('the unit is one that systemd accepts without a complaint', () => {
  expect(analyze('verify')).toEqual({ status: 0, said: '' });
});

it('the unit is hardened', () => {
  const { said } = analyze('security', '--offline=true');
  const [, exposure] = /Overall exposure level for oncegate.service: ([\d.]+)/.exec(said) ?? [];
  expect(Number(exposure)).toBeLessThan(2);
  expect(UNIT).toMatch(/^LimitCORE=0$/m);
});

it('the unit starts a gateway in which no signal opens a debugger', async () => {
  const [, options = ''] = /^Environment=.*"NODE_OPTIONS=([^"]*)"$/m.exec(UNIT) ?? [];
  expect(options).toContain(NODE_FLAGS.join(' '));
  const sandbox = await createSandbox({ port: 0 });
  onTestFinished(() => sandbox.close());
  const gateway = await spawnGateway(testConfig(temporaryFolder(), sandbox.url), { NODE_OPTIONS: options });
  let errors = '';
  gateway.child.stderr?.on('data', (chunk) => {
    errors += chunk;
  });
  process.kill(gateway.pid, 'SIGUSR1');
  for (const key of ['a', 'b']) expect((await withdraw(gateway.url, { key })).status).toBe(201);
  await gateway.end();
  expect(errors).not.toMatch(/debugger|inspector/i);
});

it('the unit starts it again as often as it takes, except after a mistake in the configuration', async () => {
  // systemd looks at the exit code of ExecStart only, so a check in ExecStartPre would be repeated, and give up after five times.
  expect(UNIT).toMatch(/^Restart=always$/m);
  expect(UNIT).toMatch(/^StartLimitIntervalSec=0$/m);
  expect(UNIT).not.toMatch(/^ExecStartPre=/m);
  const [, last] = /^RestartPreventExitStatus=(\d+)$/m.exec(UNIT) ?? [];
  const file = join(temporaryFolder(), 'gateway.yaml');
  writeFileSync(file, 'upstream: { url: "http://127.0.0.1:1" }\nlistn: {}\n');
  const [, args = ''] = /^ExecStart=\S+ (.+)$/m.exec(UNIT) ?? [];
  const { code } = await run(args.replace('/etc/oncegate/gateway.yaml', file).split(' '));
  expect(code).toBe(Number(last));
});

it('the unit gives the gateway more time to stop than it takes', () => {
  const [, seconds] = /^TimeoutStopSec=(\d+)$/m.exec(UNIT) ?? [];
  const config = parsedConfig({ upstream: { url: 'http://127.0.0.1:1' } });
  expect(Number(seconds) * 1000).toBeGreaterThan(shutdownWithinMs(config));
});
