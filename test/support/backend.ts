import { once } from 'node:events';
import { createServer as createHttpServer, type RequestListener, type Server } from 'node:http';
import { type AddressInfo, connect, createServer, type Server as NetServer, type Socket } from 'node:net';
import { setImmediate as immediate, setTimeout as sleep } from 'node:timers/promises';
import { Worker } from 'node:worker_threads';
import { afterAll, onTestFinished } from 'vitest';

/** A server that is closed with all its connections. */
export interface OpenBackend {
  url: string;
  close(): Promise<void>;
}

/** A backend whose every byte the test writes. It is closed after the test. */
export async function rawBackend(onConnection: (socket: Socket) => void): Promise<string> {
  return await untilTestEnds(createServer(onConnection));
}

/** A backend that speaks HTTP and answers with the test's handler. It is closed after the test. */
export async function httpBackend(
  onRequest: RequestListener,
  prepare: (server: Server) => void = () => {},
): Promise<string> {
  const server = createHttpServer(onRequest);
  prepare(server);
  return await untilTestEnds(server);
}

async function untilTestEnds(server: NetServer): Promise<string> {
  const { url, close } = await openBackend(server);
  onTestFinished(close);
  return url;
}

/** A backend that is closed after the test file. */
export async function backendForFile(server: NetServer): Promise<string> {
  const { url, close } = await openBackend(server);
  afterAll(close);
  return url;
}

/** The caller closes it. */
export async function openBackend(server: NetServer): Promise<OpenBackend> {
  const sockets = new Set<Socket>();
  server.on('connection', (socket: Socket) => {
    sockets.add(socket);
    socket.on('error', () => {});
    socket.once('close', () => sockets.delete(socket));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    async close() {
      const closed = new Promise((resolve) => server.close(resolve));
      for (const socket of sockets) socket.destroy();
      await closed;
    },
  };
}

/** A URL whose connections are refused. Its port is a reserved one, so that no other test gets it meanwhile. */
export const NOT_LISTENING = 'http://127.0.0.1:1';

/**
 * A URL where connecting never ends: a blocked process listens and accepts nothing, and its backlog is full, so that the
 * kernel drops further SYN packets. The test must close it.
 */
export async function openBlackHole(): Promise<OpenBackend & { port: number }> {
  const worker = new Worker(STANDS_STILL, { eval: true });
  const fillers: Socket[] = [];
  const [port] = (await once(worker, 'message')) as [number];
  do fillers.push(connect(port, '127.0.0.1').on('error', () => {}));
  while (await connects(fillers.at(-1) as Socket));
  return {
    port,
    url: `http://127.0.0.1:${port}`,
    async close() {
      for (const socket of fillers) socket.destroy();
      await worker.terminate();
    },
  };
}

const STANDS_STILL = `
  const server = require('node:net').createServer().listen({ port: 0, host: '127.0.0.1', backlog: 1 }, () => {
    require('node:worker_threads').parentPort.postMessage(server.address().port);
    setImmediate(() => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0));
  });`;

/** On loopback a connection is established at once, or not at all. */
async function connects(socket: Socket): Promise<boolean> {
  await sleep(200);
  // If the test's own process was delayed, its timer fires before it handles the connection.
  await immediate();
  return !socket.connecting;
}
