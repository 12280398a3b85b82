import type { RecordsQuestion } from '../admin/application.ts';
import type { KeyReload } from '../kernel/key-reload.ts';

export type Question =
  | { what: 'metrics' | 'checks' | 'warnings' }
  | { what: 'records'; question: RecordsQuestion };

/** From the primary to a worker. */
export type ToWorker = ({ kind: 'ask'; id: number } & Question) | { kind: 'shut_down' | 'reload_keys' };

/** From a worker to the primary. */
export type FromWorker =
  | { kind: 'listening'; port: number }
  | { kind: 'failed'; message: string; exitCode: number }
  | { kind: 'answer'; id: number; answer: object }
  | { kind: 'keys_reloaded'; reload: KeyReload }
  /** The worker's counts, sent regularly so that they outlive it. */
  | { kind: 'metrics'; metrics: object[] };
