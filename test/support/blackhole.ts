import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { setImmediate as immediate, setTimeout as sleep } from 'node:timers/promises';
import { Worker } from 'node:worker_threads';

/** Listens, and then blocks its thread. The kernel accepts connections up to the backlog and drops all others. */
const STANDS_STILL = `
  const { parentPort } = require('node:worker_threads');
  const server = require('node:net').createServer();
  server.listen({ port: 0, host: '127.0.0.1', backlog: 1 }, () => {
    parentPort.postMessage(server.address().port);
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);
  });
`;
const FULL_AFTER_MS = 250;

export interface Blackhole extends AsyncDisposable {
  port: number;
}

/** A local port on which connecting never ends. */
export async function openBlackhole(): Promise<Blackhole> {
  const worker = new Worker(STANDS_STILL, { eval: true });
  const [port] = (await once(worker, 'message')) as [number];
  const fillers: Socket[] = [];
  // Connections fill the backlog one after the other, until one is not accepted.
  for (let connected = true; connected; ) {
    const filler = connect(port, '127.0.0.1').on('error', () => {});
    fillers.push(filler);
    await Promise.race([once(filler, 'connect'), sleep(FULL_AFTER_MS)]);
    // If the test's own process was delayed, its timer fires before it handles the connection.
    await immediate();
    connected = !filler.connecting;
  }
  return {
    port,
    async [Symbol.asyncDispose]() {
      for (const filler of fillers) filler.destroy();
      await worker.terminate();
    },
  };
}
