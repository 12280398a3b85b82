import type { IncomingMessage } from 'node:http';
import type { Duplex } from 'node:stream';
import { WebSocketServer } from 'ws';

/** Accepts an upgrade as a backend does, and ends it when the other side does. */
export function acceptUpgrade(socket: Duplex): void {
  socket.on('end', () => socket.end());
  socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n');
}

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
