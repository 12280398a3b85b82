import { backend, latency } from './backend.ts';
import { gateways } from './gateways.ts';
import { keys, tls } from './keys.ts';
import { processes } from './processes.ts';
import { sqlite, store } from './store.ts';

export const runtime = {
  page: 'runtime' as const,
  title: 'Runtime',
  description: 'The parts below the promise: processes, backend, store, secret keys and certificates.',
  choices: [{ name: 'operation', label: 'Operation', metric: 'oncegate_idempotency_hits_total' }],
  rows: [gateways, processes, latency, backend, store, sqlite, keys, tls],
};
