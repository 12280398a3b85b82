import { randomInt } from 'node:crypto';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** Below the range of ephemeral ports, so that a free port stays free for a while. */
const PORTS = { from: 16_000, below: 32_000 };

const mine = new Set<string>();
process.once('exit', () => {
  for (const file of mine) rmSync(file, { force: true });
});

/**
 * A free loopback port. No other process of the tests gets it while this one runs, so that a server which was killed can be
 * started again on its port.
 */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = randomInt(PORTS.from, PORTS.below);
    if (reserve(port) && (await isFree(port))) return port;
  }
}

/** Reserves the port with a file that has the id of this process. */
function reserve(port: number): boolean {
  const file = join(tmpdir(), `oncegate-port-${port}`);
  try {
    writeFileSync(file, String(process.pid), { flag: 'wx' });
  } catch {
    if (isHeld(file)) return false;
    // Two processes may replace the same file. The process that reads its own id afterwards has the port.
    writeFileSync(file, String(process.pid));
    if (readFileSync(file, 'utf8') !== String(process.pid)) return false;
  }
  mine.add(file);
  return true;
}

/** Whether the process that reserved it still runs. */
function isHeld(file: string): boolean {
  try {
    process.kill(Number(readFileSync(file, 'utf8')), 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', () => resolve(false));
    server.listen(port, '127.0.0.1', () => server.close(() => resolve(true)));
  });
}
