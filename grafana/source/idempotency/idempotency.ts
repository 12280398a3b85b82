import { doubt } from './doubt.ts';
import { duplicates } from './duplicates.ts';
import { promise } from './promise.ts';
import { observeMode, writes } from './writes.ts';

export const idempotency = {
  page: 'idempotency' as const,
  title: 'Idempotency',
  description:
    'One merchant, one idempotency key, one execution: is the promise kept, and what endangers it?',
  choices: [{ name: 'operation', label: 'Operation', metric: 'oncegate_idempotency_hits_total' }],
  rows: [promise, doubt, duplicates, writes, observeMode],
};
