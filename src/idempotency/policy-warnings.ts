import type { InDoubtPolicy } from './call.ts';

interface PolicedOperation {
  name: string;
  idempotency: { inDoubt: InDoubtPolicy };
}

/** What an operator ought to know of the policies that are configured, each one line. */
export function policyWarnings(operations: readonly PolicedOperation[]): string[] {
  const danger =
    'a request that may have been executed is sent again; it pays twice, unless the backend itself executes each key once';
  return operations
    .filter(({ idempotency }) => idempotency.inDoubt === 'retry')
    .map(({ name }) => `${name} has inDoubt: retry: ${danger}`);
}
