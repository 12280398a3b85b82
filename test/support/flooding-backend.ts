import { createServer } from 'node:http';
import { openBackend } from './backend.ts';

const PIECE = Buffer.alloc(65_536, 'x');

/** A backend whose answers can be endless. The test closes it. */
export interface FloodingBackend {
  url: string;
  /** Endless answers that it is sending. */
  streams: number;
  /** Bytes of endless answers that it could write. */
  bytes: number;
  /** Open connections: now, and the most at any time. */
  connections: { open: number; most: number };
  close(): Promise<void>;
}

/**
 * The path or `X-Sandbox-Fault` selects the answer. `endless`: a body without end. `large=BYTES`: a body of this length.
 * `begin=BYTES`: this many bytes and then nothing more. Anything else: a short body.
 */
export async function openFloodingBackend(): Promise<FloodingBackend> {
  const connections = { open: 0, most: 0 };
  const server = createServer((req, res) => {
    const asked = `${req.url} ${req.headers['x-sandbox-fault']}`;
    const [, how, bytes = '0'] = /(large|begin)=(\d+)/.exec(asked) ?? [];
    req.resume();
    res.statusCode = req.method === 'GET' ? 200 : 201;
    if (!asked.includes('endless')) {
      if (how === undefined) res.end('short');
      else if (how === 'large') res.end(Buffer.alloc(Number(bytes), 'x'));
      else res.write(Buffer.alloc(Number(bytes), 'x'));
      return;
    }
    backend.streams++;
    res.once('close', () => backend.streams--);
    const pump = () => {
      do backend.bytes += PIECE.length;
      while (!res.destroyed && res.write(PIECE));
    };
    res.on('drain', pump);
    pump();
  });
  server.on('connection', (socket) => {
    connections.open++;
    connections.most = Math.max(connections.most, connections.open);
    socket.once('close', () => connections.open--);
  });
  const backend: FloodingBackend = { streams: 0, bytes: 0, connections, ...(await openBackend(server)) };
  return backend;
}
