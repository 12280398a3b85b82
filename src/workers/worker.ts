import cluster from 'node:cluster';
import type { Gateway } from '../gateway/gateway.ts';
import type { KeyReload } from '../kernel/context.ts';
import type { RecordsQuestion } from '../kernel/records.ts';

export type Question =
  | { what: 'metrics' | 'checks' | 'warnings' }
  | { what: 'records'; question: RecordsQuestion };

/** Messages from the primary to a worker. */
export type ToWorker = ({ kind: 'ask'; id: number } & Question) | { kind: 'shut_down' | 'reload_keys' };

/** Messages from a worker to the primary. */
export type FromWorker =
  | { kind: 'listening'; port: number }
  | { kind: 'failed'; message: string; exitCode: number }
  | { kind: 'answer'; id: number; answer: object }
  | { kind: 'keys_reloaded'; reload: KeyReload }
  /** Sent regularly, so that the primary still has the worker's counts if the worker is killed. */
  | { kind: 'metrics'; metrics: object[] };

const REPORT_METRICS_EVERY_MS = 2000;

function send(message: FromWorker): Promise<void> {
  return new Promise((resolve) => {
    if (process.send) process.send(message, undefined, undefined, () => resolve());
    else resolve();
  });
}

/** Reports why this worker cannot start. The primary shows it to the operator. */
export async function reportFailure(message: string, exitCode: number): Promise<void> {
  await send({ kind: 'failed', message, exitCode });
}

/** Reports a reading of the key file. The primary logs it once for all workers. */
export function reportReload(reload: KeyReload): void {
  void send({ kind: 'keys_reloaded', reload });
}

export async function reportMetrics(gateway: Gateway): Promise<void> {
  await send({ kind: 'metrics', metrics: await gateway.metrics.snapshot() });
}

/** Answers the primary's questions. Calls `shutDown` when the primary asks for it and when the primary has exited. */
export function followPrimary(gateway: Gateway, port: number, shutDown: () => void): void {
  process.on('message', (message: ToWorker) => {
    if (message.kind === 'shut_down') shutDown();
    else if (message.kind === 'reload_keys') void gateway.reloadKeys();
    else if (message.kind === 'ask') void answer(gateway, message);
  });
  // By default, node:cluster ends a worker as soon as the primary exits, even while requests execute. This flag prevents it.
  if (cluster.worker) cluster.worker.exitedAfterDisconnect = true;
  process.once('disconnect', () => {
    // Releases the port for the next primary.
    gateway.server.close();
    shutDown();
  });
  const timer = setInterval(() => void reportMetrics(gateway), REPORT_METRICS_EVERY_MS);
  timer.unref();
  void send({ kind: 'listening', port });
}

async function answer(gateway: Gateway, asked: Extract<ToWorker, { kind: 'ask' }>): Promise<void> {
  await send({ kind: 'answer', id: asked.id, answer: await answerTo(gateway, asked) });
}

async function answerTo(gateway: Gateway, asked: Question): Promise<object> {
  if (asked.what === 'records') return await gateway.desk.answer(asked.question);
  if (asked.what === 'warnings') return await gateway.warnings();
  return asked.what === 'metrics' ? await gateway.metrics.snapshot() : await gateway.checks();
}
