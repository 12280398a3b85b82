import type { Check } from '../admin/application.ts';

/** From the primary to a worker. */
export type ToWorker =
  | { kind: 'ask'; id: number; what: 'metrics' | 'checks' }
  | { kind: 'shut_down' }
  | { kind: 'close' };

/** From a worker to the primary. */
export type FromWorker =
  | { kind: 'listening'; port: number }
  | { kind: 'failed'; message: string; exitCode: number }
  | { kind: 'answer'; id: number; answer: object[] | Check[] }
  /** Nothing runs any more in a worker that was told to shut down; it closes when all are as far. */
  | { kind: 'drained' }
  /** The worker's counts, told now and then, so that they outlive it. */
  | { kind: 'metrics'; metrics: object[] };
