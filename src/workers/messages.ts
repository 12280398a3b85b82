import type { RecordsQuestion } from '../admin/application.ts';

export type Question = { what: 'metrics' | 'checks' } | { what: 'records'; question: RecordsQuestion };

/** From the primary to a worker. */
export type ToWorker = ({ kind: 'ask'; id: number } & Question) | { kind: 'shut_down' };

/** From a worker to the primary. */
export type FromWorker =
  | { kind: 'listening'; port: number }
  | { kind: 'failed'; message: string; exitCode: number }
  | { kind: 'answer'; id: number; answer: object }
  /** The worker's counts, told now and then, so that they outlive it. */
  | { kind: 'metrics'; metrics: object[] };
