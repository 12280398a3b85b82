import type { Server } from 'node:http';

/**
 * Connections that wait to be accepted; the system may allow fewer. One more is dropped, and its client tries again only a
 * second later.
 */
const BACKLOG = 4096;

/** Resolves to the port. @throws the system's error where it cannot be had. */
export function listen(server: Server, host: string, port: number): Promise<number> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen({ port, host, backlog: BACKLOG }, () => {
      server.off('error', reject);
      const address = server.address();
      resolve(typeof address === 'object' && address ? address.port : port);
    });
  });
}
