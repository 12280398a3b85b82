import { createServer, request, type Server } from 'node:http';
import { listen } from '../../src/gateway/http-server.ts';
import { atEndOfFile } from './at-end-of-file.ts';

/** What stands between a merchant and the gateway. */
export interface LossyWire {
  url: string;
  /** The port of the gateway. */
  port: number;
  /** The idempotency keys that were sent. */
  keys: Set<string>;
}

const servers: Server[] = [];
atEndOfFile(() => {
  for (const server of servers.splice(0)) {
    server.closeAllConnections();
    server.close();
  }
});

interface Losses {
  /** The sandbox's fault for every request. */
  fault?: string;
  /** Resets the connection in place of the first answer. */
  losesFirst?: boolean;
  /** Refuses the first request with this Retry-After. */
  refusesFirst?: string;
  /** Answers the first request with a problem of a code that nobody knows, and this `retry`. */
  problemFirst?: string;
  /** Passes on these bytes of the first answer only. */
  bytes?: number;
}

/** A proxy that is closed after the test file. */
export async function openLossyWire(port: number, { fault, ...losses }: Losses = {}): Promise<LossyWire> {
  let { losesFirst, refusesFirst, problemFirst, bytes } = losses;
  const wire: LossyWire = { url: '', port, keys: new Set() };
  const server = createServer((req, res) => {
    wire.keys.add(String(req.headers['x-service-idempotency'] ?? req.headers['idempotency-key']));
    if (refusesFirst !== undefined) {
      res.writeHead(429, { 'Retry-After': refusesFirst }).end();
      refusesFirst = undefined;
      return;
    }
    if (problemFirst !== undefined) {
      const error = { code: 'of_a_later_version', message: '', retry: problemFirst, request_id: 'order-7.1' };
      res.writeHead(409, { 'Content-Type': 'application/problem+json' }).end(JSON.stringify({ error }));
      problemFirst = undefined;
      return;
    }
    const headers = { ...req.headers, ...(fault && { 'x-sandbox-fault': fault }) };
    const onward = request({ port: wire.port, path: req.url, method: req.method, headers, agent: false });
    onward.on('error', () => req.socket.destroy());
    onward.on('response', (answer) => {
      answer.on('error', () => req.socket.destroy());
      if (losesFirst) {
        losesFirst = false;
        answer.resume().once('end', () => req.socket.resetAndDestroy());
        return;
      }
      res.writeHead(answer.statusCode ?? 0, answer.headers);
      if (bytes === undefined) {
        answer.pipe(res);
        return;
      }
      const end = bytes;
      bytes = undefined;
      answer.once('data', (data) => res.write(data.subarray(0, end), () => req.socket.end()));
    });
    req.pipe(onward);
  });
  servers.push(server);
  wire.url = `http://127.0.0.1:${await listen(server, '127.0.0.1', 0)}`;
  return wire;
}
