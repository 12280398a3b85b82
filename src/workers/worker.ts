import cluster from 'node:cluster';
import type { Gateway } from '../gateway/gateway.ts';
import type { FromWorker, Question, ToWorker } from './messages.ts';

const TELL_METRICS_EVERY_MS = 2000;

function tell(message: FromWorker): Promise<void> {
  return new Promise((resolve) => {
    if (process.send) process.send(message, undefined, undefined, () => resolve());
    else resolve();
  });
}

/** The primary cannot know why a worker fails to start unless it is told. */
export async function reportFailure(message: string, exitCode: number): Promise<void> {
  await tell({ kind: 'failed', message, exitCode });
}

/** Answers the primary's questions. `shutDown` is called on its word, and when the primary has gone. */
export function obeyPrimary(gateway: Gateway, port: number, shutDown: () => void): void {
  process.on('message', (message: ToWorker) => {
    if (message.kind === 'shut_down') shutDown();
    else if (message.kind === 'ask') void answer(gateway, message);
  });
  // Otherwise node:cluster ends this process the moment its primary has gone, in the middle of whatever it executes.
  if (cluster.worker) cluster.worker.exitedAfterDisconnect = true;
  process.once('disconnect', () => {
    // Whoever takes the primary's place needs the port.
    gateway.server.close();
    shutDown();
  });
  const timer = setInterval(() => void tellMetrics(gateway), TELL_METRICS_EVERY_MS);
  timer.unref();
  void tell({ kind: 'listening', port });
}

async function answer(gateway: Gateway, asked: Extract<ToWorker, { kind: 'ask' }>): Promise<void> {
  await tell({ kind: 'answer', id: asked.id, answer: await answerTo(gateway, asked) });
}

async function answerTo(gateway: Gateway, asked: Question): Promise<object> {
  if (asked.what === 'records') return await gateway.desk.answer(asked.question);
  return asked.what === 'metrics' ? await gateway.metrics.snapshot() : await gateway.checks();
}

/** The last word of a worker that ends: its counts. */
export async function tellMetrics(gateway: Gateway): Promise<void> {
  await tell({ kind: 'metrics', metrics: await gateway.metrics.snapshot() });
}
