import type { ClientRequest } from 'node:http';

/** Node has no timer for connecting, TLS included. */
export function guardConnecting(proxyReq: ClientRequest, timeoutMs: number, onConnected: () => void): void {
  const { socket } = proxyReq;
  if (!socket) {
    proxyReq.once('socket', () => guardConnecting(proxyReq, timeoutMs, onConnected));
    return;
  }
  if (!socket.connecting) {
    onConnected();
    return;
  }
  const timer = setTimeout(() => fail(proxyReq, 'ECONNTIMEOUT'), timeoutMs);
  socket.once('encrypted' in socket ? 'secureConnect' : 'connect', () => {
    clearTimeout(timer);
    onConnected();
  });
  socket.once('close', () => clearTimeout(timer));
}

/** A deadline from the request's end to the response's head. */
export function guardWaiting(proxyReq: ClientRequest, timeoutMs: number): void {
  let timer: NodeJS.Timeout | undefined;
  proxyReq.once('finish', () => {
    timer = setTimeout(() => fail(proxyReq, 'ERESPONSETIMEOUT'), timeoutMs);
  });
  for (const event of ['response', 'upgrade', 'close']) proxyReq.once(event, () => clearTimeout(timer));
}

const fail = (proxyReq: ClientRequest, code: string) =>
  proxyReq.destroy(Object.assign(new Error(code), { code }));
