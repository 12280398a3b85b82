import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { stringify } from 'yaml';
import { FAST_START, newFolder } from '../support/command.ts';
import { testConfig } from '../support/config.ts';
import { freePort } from '../support/free-port.ts';
import { MAIN, track } from '../support/spawn.ts';

/** Resolves at the first moment at which the port accepts a connection. */
async function firstConnection(port: number): Promise<void> {
  for (;;) {
    const socket = connect(port, '127.0.0.1');
    const accepted = await Promise.race([
      once(socket, 'connect').then(() => true),
      once(socket, 'error').then(() => false),
    ]).catch(() => false);
    socket.destroy();
    if (accepted) return;
  }
}

// It served merchants before it had a listener for the signal, and would have cut what it executed.
it('a gateway that serves already, and has not ended its start, shuts down gracefully on SIGTERM', async () => {
  const folder = newFolder();
  const port = await freePort();
  const file = join(folder, 'gateway.yaml');
  const config = testConfig(folder, 'http://127.0.0.1:1');
  writeFileSync(
    file,
    stringify({ ...config, listen: { host: '127.0.0.1', port }, shutdown: { delayMs: 0 } }),
  );
  const gateway = track(
    spawn(process.execPath, [MAIN, 'serve', '--config', file], {
      env: { ...process.env, ...FAST_START },
      stdio: ['ignore', 'ignore', 'inherit'],
    }),
  );
  const exited = once(gateway, 'exit');
  await firstConnection(port);
  gateway.kill('SIGTERM');
  expect(await exited).toEqual([0, null]);
});
