import cluster from 'node:cluster';
import { isDeepStrictEqual } from 'node:util';
import type { Config } from '../config/schema.ts';
import type { Gateway } from '../gateway/gateway.ts';
import type { KeyReload } from '../kernel/context.ts';
import type { RecordsQuestion } from '../kernel/records.ts';

export type Question =
  | { what: 'metrics' | 'checks' | 'warnings' }
  | { what: 'records'; question: RecordsQuestion }
  /** The answer means that the configuration is in force, unless it has a `failure`. */
  | { what: 'reload'; config: Config };

/** Messages from the primary to a worker. */
export type ToWorker =
  | ({ kind: 'ask'; id: number } & Question)
  | { kind: 'shut_down' | 'reload_keys' }
  /** The answer to `ask_configuration`: see `ConfigFile.versions`. */
  | { kind: 'configure'; versions: readonly Config[] }
  /** Sent to one worker, because the primary has no metrics. */
  | { kind: 'count_config_reload'; result: string };

/** Messages from a worker to the primary. */
export type FromWorker =
  /** `follows`: from the answer on, the worker answers `reload`, although it does not listen yet. */
  | { kind: 'ask_configuration'; follows: boolean }
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

/**
 * Asks the primary for the configurations that were in force, the last one now. A worker does not read the file: it may have
 * changed, and all workers must run on the same version.
 */
export async function askConfiguration(): Promise<readonly Config[]> {
  const answer = new Promise<readonly Config[]>((resolve) => {
    const onMessage = (message: ToWorker) => {
      if (message.kind !== 'configure') return;
      process.off('message', onMessage);
      resolve(message.versions);
    };
    process.on('message', onMessage);
  });
  await send({ kind: 'ask_configuration', follows: false });
  return await answer;
}

/**
 * Asks the primary again, because the configuration may have changed while the gateway opened its store and its keys, and puts
 * what is new in force. From the answer on, every reload reaches this worker, before it listens.
 *
 * Messages arrive in order, and each is handled completely before the next one: a promise could be resolved after a later reload.
 *
 * @param versions those that the gateway was opened with
 */
export async function followConfiguration(gateway: Gateway, versions: readonly Config[]): Promise<void> {
  const known = Promise.withResolvers<void>();
  process.on('message', (message: ToWorker) => {
    if (message.kind === 'ask' && message.what === 'reload') void answer(gateway, message);
    if (message.kind !== 'configure') return;
    try {
      if (!isDeepStrictEqual(message.versions, versions))
        for (const version of message.versions) gateway.reload(version);
      known.resolve();
    } catch (error) {
      known.reject(error);
    }
  });
  await send({ kind: 'ask_configuration', follows: true });
  await known.promise;
}

/** Reports a reading of the secret keys. The primary logs it once for all workers. */
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
    else if (message.kind === 'count_config_reload') gateway.countConfigReload(message.result);
    // followConfiguration answers `reload`.
    else if (message.kind === 'ask' && message.what !== 'reload') void answer(gateway, message);
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
  if (asked.what === 'reload') {
    try {
      gateway.reload(asked.config);
      return {};
    } catch (error) {
      // Thrown on, it would end the worker and leave in doubt what it executes.
      return { failure: error instanceof Error ? error.message : 'unknown error' };
    }
  }
  if (asked.what === 'records') {
    try {
      return await gateway.desk.answer(asked.question);
    } catch (error) {
      // As above: one record that nobody thought of must not end the workers.
      return { failure: error instanceof Error ? error.message : 'unknown error' };
    }
  }
  if (asked.what === 'warnings') return await gateway.warnings();
  return asked.what === 'metrics' ? await gateway.metrics.snapshot() : await gateway.checks();
}
