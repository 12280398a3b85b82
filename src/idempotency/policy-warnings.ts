import type { InDoubtPolicy } from './call.ts';

interface Policies {
  operations: readonly {
    name: string;
    match: { usesOldName: boolean };
    idempotency: { inDoubt: InDoubtPolicy };
  }[];
  idempotency: { undeclared: 'protect' | 'pass' | 'refuse' };
}

/** What an operator ought to know of the configured policies, one line each. */
export function policyWarnings({ operations, idempotency: { undeclared } }: Policies): string[] {
  const warnings: string[] = [];
  for (const { name, match, idempotency } of operations) {
    if (idempotency.inDoubt === 'retry')
      warnings.push(
        `${name} has inDoubt: retry: a request that may have been executed is sent again; it pays twice, unless the backend itself executes each key once`,
      );
    if (match.usesOldName) warnings.push(`${name} has match.body, which is the older name of match.where`);
  }
  if (undeclared === 'pass')
    warnings.push(
      'idempotency.undeclared is pass: a key does not protect requests that no operation declares',
    );
  return warnings;
}
