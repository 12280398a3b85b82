import type { IncomingMessage } from 'node:http';
import type { Duplex } from 'node:stream';
import { WebSocketServer } from 'ws';

/** Sends every message back, for the sandbox's `onUpgrade`. Adds each handshake to `seen`. */
export function echoingWebSockets(seen: IncomingMessage[] = []) {
  const server = new WebSocketServer({ noServer: true });
  return (request: IncomingMessage, socket: Duplex, head: Buffer): void => {
    seen.push(request);
    server.handleUpgrade(request, socket, head, (webSocket) => {
      webSocket.on('message', (data, isBinary) => webSocket.send(data, { binary: isBinary }));
      webSocket.on('error', () => {});
    });
  };
}
