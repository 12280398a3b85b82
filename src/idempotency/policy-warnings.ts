import type { InDoubtPolicy } from './call.ts';

interface PolicedOperation {
  name: string;
  idempotency: { inDoubt: InDoubtPolicy; lookup?: { path: string } | undefined };
}

/** What an operator ought to know of the policies that are configured, each one line. */
export function policyWarnings(operations: readonly PolicedOperation[]): string[] {
  return operations.flatMap(({ name, idempotency: { inDoubt, lookup } }) => {
    if (inDoubt === 'retry') {
      const danger =
        'a request that may have been executed is sent again; it pays twice, unless the backend itself executes each key once';
      return [`${name} has inDoubt: retry: ${danger}`];
    }
    if (lookup && !lookup.path.includes('{merchant}')) {
      const danger =
        'unless keys are unique among all merchants, or the backend heeds X-Merchant-Code, one merchant gets another’s result';
      return [`${name} has a lookup without {merchant}: ${danger}`];
    }
    return [];
  });
}
