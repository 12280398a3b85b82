import { connect } from 'node:net';

/** Can a connection to the backend be made? One line for the operator. */
export function reachable(url: string, timeoutMs: number): Promise<{ ok: boolean; detail: string }> {
  const { hostname, port, protocol } = new URL(url);
  const host = hostname.replace(/^\[|\]$/g, '');
  return new Promise((resolve) => {
    const socket = connect({ host, port: Number(port) || (protocol === 'https:' ? 443 : 80) });
    const end = (ok: boolean, detail: string) => {
      socket.destroy();
      resolve({ ok, detail });
    };
    socket.setTimeout(timeoutMs, () => end(false, `no connection within ${timeoutMs} ms`));
    socket.once('connect', () => end(true, 'reachable'));
    socket.once('error', (error: NodeJS.ErrnoException) => end(false, error.code ?? error.message));
  });
}
