import { createServer, type IncomingMessage } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';

export interface Received {
  method: string;
  target: string;
  rawHeaders: string[];
  body: Buffer;
}

/** A backend that answers each request with the same bytes, and keeps the requests byte for byte. */
export interface RecordingBackend extends AsyncDisposable {
  url: string;
  received: Received[];
}

/** @param answer the whole response, from its status line on; then the connection is closed */
export async function startRecordingBackend(answer: string | Buffer): Promise<RecordingBackend> {
  const received: Received[] = [];
  const sockets = new Set<Socket>();
  const server = createServer((req, res) => {
    void bodyOf(req).then((body) => {
      const { method = '', url: target = '', rawHeaders } = req;
      received.push({ method, target, rawHeaders, body });
      res.socket?.end(answer);
    });
  });
  server.on('connection', (socket) => sockets.add(socket));
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    received,
    async [Symbol.asyncDispose]() {
      for (const socket of sockets) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

async function bodyOf(req: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of req as AsyncIterable<Buffer>) chunks.push(chunk);
  return Buffer.concat(chunks);
}

/** The values of a header, one for each of its lines. */
export function linesOf(rawHeaders: readonly string[], name: string): string[] {
  return rawHeaders.filter((_, at) => at % 2 === 1 && rawHeaders[at - 1]?.toLowerCase() === name);
}
