import { createServer } from 'node:http';
import { openBackend } from './backend.ts';

const PIECE = Buffer.alloc(65_536, 'x');

/** A backend with answers that do not end. The test closes it. */
export interface FloodingBackend {
  url: string;
  /** Endless answers that it is sending. */
  streams: number;
  /** Open connections. */
  connections: number;
  close(): Promise<void>;
}

/** `X-Sandbox-Fault: endless` asks for a body without end; any other request gets a first piece of one, and then nothing more. */
export async function openFloodingBackend(): Promise<FloodingBackend> {
  const server = createServer((req, res) => {
    req.resume();
    res.write('x');
    if (req.headers['x-sandbox-fault'] !== 'endless') return;
    backend.streams++;
    res.once('close', () => backend.streams--);
    const pump = () => {
      while (!res.destroyed && res.write(PIECE));
    };
    res.on('drain', pump);
    pump();
  });
  server.on('connection', (socket) => {
    backend.connections++;
    socket.once('close', () => backend.connections--);
  });
  const backend: FloodingBackend = { streams: 0, connections: 0, ...(await openBackend(server)) };
  return backend;
}
