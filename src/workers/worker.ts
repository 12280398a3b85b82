import cluster from 'node:cluster';
import type { Gateway } from '../gateway/gateway.ts';
import type { KeyReload } from '../kernel/key-reload.ts';
import type { FromWorker, Question, ToWorker } from './messages.ts';

const TELL_METRICS_EVERY_MS = 2000;

function tell(message: FromWorker): Promise<void> {
  return new Promise((resolve) => {
    if (process.send) process.send(message, undefined, undefined, () => resolve());
    else resolve();
  });
}

/** Reports to the primary why this worker cannot start. */
export async function reportFailure(message: string, exitCode: number): Promise<void> {
  await tell({ kind: 'failed', message, exitCode });
}

/** Answers the primary's questions. `shutDown` is called when the primary says so, and when it has gone. */
export function obeyPrimary(gateway: Gateway, port: number, shutDown: () => void): void {
  process.on('message', (message: ToWorker) => {
    if (message.kind === 'shut_down') shutDown();
    else if (message.kind === 'reload_keys') void gateway.reloadKeys();
    else if (message.kind === 'ask') void answer(gateway, message);
  });
  // Otherwise node:cluster ends this process the moment its primary has gone, in the middle of whatever it executes.
  if (cluster.worker) cluster.worker.exitedAfterDisconnect = true;
  process.once('disconnect', () => {
    // The primary's successor needs the port.
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
  if (asked.what === 'warnings') return await gateway.warnings();
  return asked.what === 'metrics' ? await gateway.metrics.snapshot() : await gateway.checks();
}

/** The primary logs it, once for all workers. */
export function tellReload(reload: KeyReload): void {
  void tell({ kind: 'keys_reloaded', reload });
}

/** Sends the counts of a worker that ends. */
export async function tellMetrics(gateway: Gateway): Promise<void> {
  await tell({ kind: 'metrics', metrics: await gateway.metrics.snapshot() });
}
