import { httpBackend } from './backend.ts';

const PIECE = Buffer.alloc(65_536, 'x');

/** A backend whose answers can be without end. Closed after the test. */
export interface FloodingBackend {
  url: string;
  /** Endless answers that it is sending. */
  streams: number;
  /** Bytes of endless answers that it could write. */
  bytes: number;
  /** Connections that are open, and the most that ever were. */
  connections: { open: number; most: number };
}

/**
 * By path or `X-Sandbox-Fault`: `endless` is answered without end, `large=BYTES` with as many, and `begin=BYTES` with as
 * many and then nothing more. Everything else is answered shortly.
 */
export async function openFloodingBackend(): Promise<FloodingBackend> {
  const connections = { open: 0, most: 0 };
  const backend: FloodingBackend = { url: '', streams: 0, bytes: 0, connections };
  backend.url = await httpBackend(
    (req, res) => {
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
    },
    (server) =>
      server.on('connection', (socket) => {
        connections.open++;
        connections.most = Math.max(connections.most, connections.open);
        socket.once('close', () => connections.open--);
      }),
  );
  return backend;
}
