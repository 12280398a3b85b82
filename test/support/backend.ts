import { once } from 'node:events';
import { createServer as createHttpServer, type RequestListener, type Server } from 'node:http';
import { type AddressInfo, connect, createServer, type Server as NetServer, type Socket } from 'node:net';
import { Worker } from 'node:worker_threads';
import { onTestFinished } from 'vitest';

/** A backend whose every byte is the test's; closed with all its connections at the end of the test. */
export async function rawBackend(onConnection: (socket: Socket) => void): Promise<string> {
  return await opened(createServer(onConnection));
}

/** A backend that speaks HTTP and otherwise does what the test says; closed at the end of the test. */
export async function httpBackend(
  onRequest: RequestListener,
  prepare: (server: Server) => void = () => {},
): Promise<string> {
  const server = createHttpServer(onRequest);
  prepare(server);
  return await opened(server);
}

async function opened(server: NetServer): Promise<string> {
  const sockets = new Set<Socket>();
  server.on('connection', (socket: Socket) => {
    sockets.add(socket);
    socket.on('error', () => {});
    socket.once('close', () => sockets.delete(socket));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  onTestFinished(async () => {
    const closed = new Promise((resolve) => server.close(resolve));
    for (const socket of sockets) socket.destroy();
    await closed;
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

/** Where nobody listens: connections are refused. A port of the system's, so that no other test is given it meanwhile. */
export const NOBODY = 'http://127.0.0.1:1';

/**
 * Where connecting never ends: a listener that stands still, so that nobody accepts, and whose queue is full, so that
 * the kernel drops what comes on top.
 */
export async function blackHole(): Promise<string> {
  const worker = new Worker(STANDS_STILL, { eval: true });
  const fillers: Socket[] = [];
  onTestFinished(async () => {
    for (const socket of fillers) socket.destroy();
    await worker.terminate();
  });
  const [port] = (await once(worker, 'message')) as [number];
  await fill(port, fillers);
  return `http://127.0.0.1:${port}`;
}

const STANDS_STILL = `
  const server = require('node:net').createServer().listen({ port: 0, host: '127.0.0.1', backlog: 1 }, () => {
    require('node:worker_threads').parentPort.postMessage(server.address().port);
    setImmediate(() => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0));
  });`;

/** The queue is full when a connection is not made any more. */
async function fill(port: number, fillers: Socket[]): Promise<void> {
  for (;;) {
    const socket = connect(port, '127.0.0.1').on('error', () => {});
    fillers.push(socket);
    const connected = once(socket, 'connect').then(() => true);
    const tooLong = new Promise<false>((resolve) => setTimeout(resolve, 300, false));
    if (!(await Promise.race([connected, tooLong]))) return;
  }
}
