import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { closeSync, openSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { stringify } from 'yaml';
import { send, withdraw } from '../../support/client.ts';
import { FAST_START, newFolder } from '../../support/command.ts';
import { testConfig } from '../../support/config.ts';
import { freePort } from '../../support/free-port.ts';
import { MAIN, track } from '../../support/spawn.ts';
import { until } from '../../support/until.ts';
import { openSandbox } from './gateways.ts';

it.each([1, 2])(
  'a gateway that cannot write its log continues to serve, with %i workers',
  async (workers) => {
    const sandbox = await openSandbox();
    const folder = newFolder();
    const [port, adminPort] = [await freePort(), await freePort()];
    const config = testConfig(folder, sandbox.url, {
      workers,
      listen: { host: '127.0.0.1', port },
      admin: { host: '127.0.0.1', port: adminPort },
    });
    const file = join(folder, 'gateway.yaml');
    writeFileSync(file, stringify(config));
    // Every write to this file fails with ENOSPC.
    const full = openSync('/dev/full', 'w');
    const env = { ...process.env, ...FAST_START };
    const gateway = track(
      spawn(process.execPath, [MAIN, 'serve', '--config', file], { env, stdio: ['ignore', full, 'pipe'] }),
    );
    closeSync(full);
    let errors = '';
    gateway.stderr?.on('data', (chunk) => {
      errors += chunk;
    });
    const exited = once(gateway, 'exit');
    const url = `http://127.0.0.1:${port}`;
    const adminUrl = `http://127.0.0.1:${adminPort}`;
    await until(
      async () => (await send(adminUrl, { path: '/readyz' }).catch(() => undefined))?.status === 200,
    );
    const key = randomUUID();
    const answer = withdraw(url, { key, fault: 'delay=1000' });
    // Further log lines, each of which is written within 100 ms.
    for (let i = 0; i < 5; i++) expect((await send(url)).status).toBe(401);
    expect(await answer).toMatchObject({ status: 201 });
    expect((await withdraw(url, { key })).headers['idempotent-replayed']).toBe('true');
    gateway.kill('SIGTERM');
    expect(await exited).toEqual([0, null]);
    expect(errors).toBe('');
  },
);
