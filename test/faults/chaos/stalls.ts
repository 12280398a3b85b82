import { Worker } from 'node:worker_threads';
import type { History } from './history.ts';

/** From this length on, a stall is an event of the run. */
const STALL_MS = 1000;

/** Looks at the clock ten times a second, and reports by how many milliseconds it was late. */
const WITNESS = `
  const { parentPort, workerData } = require('node:worker_threads');
  let seenMs = performance.now();
  setInterval(() => {
    const forMs = performance.now() - seenMs;
    seenMs += forMs;
    if (forMs >= workerData) parentPort.postMessage(forMs);
  }, 100);
`;

/**
 * Records when this machine ran nothing for a while, as a virtual machine that waits for its host. The witness is a thread of
 * its own, so that no work of the suite delays it. The caller terminates it.
 */
export function recordStalls(history: History): Worker {
  const witness = new Worker(WITNESS, { eval: true, workerData: STALL_MS });
  witness.on('message', (forMs: number) =>
    history.add({ event: 'stalled', atMs: history.nowMs() - forMs, forMs }),
  );
  return witness;
}
