import { randomInt } from 'node:crypto';
import { createServer } from 'node:net';

/** Below the range from which outgoing connections get their ports: what is free stays free for a while. */
const PORTS = { from: 16_000, below: 32_000 };

/** A loopback port on which nobody listens. */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = randomInt(PORTS.from, PORTS.below);
    if (await isFree(port)) return port;
  }
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', () => resolve(false));
    server.listen(port, '127.0.0.1', () => server.close(() => resolve(true)));
  });
}
