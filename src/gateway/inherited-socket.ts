import { once } from 'node:events';
import type { Server } from 'node:http';
import { BACKLOG } from './http-server.ts';

/** The gateway cannot serve what it has inherited. The message is for the operator. */
export class SocketRefused extends Error {
  override readonly name = 'SocketRefused';
}

/** The first of the file descriptors that are passed. */
const FIRST_FD = 3;

/**
 * The file descriptor of the listening socket that systemd, or another program, has opened for this process (sd_listen_fds(3)).
 *
 * @throws {SocketRefused} if there are several
 */
export function inheritedSocket({ LISTEN_PID, LISTEN_FDS }: NodeJS.ProcessEnv): number | undefined {
  const count = Number(LISTEN_FDS);
  // The sockets are not for every process that inherits the environment.
  if (Number(LISTEN_PID) !== process.pid || !(count >= 1)) return undefined;
  if (count === 1) return FIRST_FD;
  throw new SocketRefused(
    `LISTEN_FDS=${count}: the gateway serves one inherited socket; leave one ListenStream= in the socket unit`,
  );
}

/**
 * Serves an inherited socket. Other processes may serve it too; each connection goes to the one that accepts it first.
 *
 * @returns the port
 * @throws {SocketRefused} if it is no listening TCP socket
 */
export async function listenOn(server: Server, fd: number): Promise<number> {
  const refused = new SocketRefused(
    `LISTEN_FDS=1: the inherited file descriptor ${fd} is not a listening TCP socket; a socket unit needs ListenStream= with a port, and Accept=no`,
  );
  server.listen({ fd, backlog: BACKLOG });
  await once(server, 'listening').catch(() => {
    throw refused;
  });
  const address = server.address();
  // A Unix socket has no port.
  if (address === null || typeof address === 'string') throw refused;
  return address.port;
}
