import type { Config } from '../config/schema.ts';
import type { Lookup } from '../idempotency/doubt/lookup.ts';
import type { Executor } from '../upstream/executor.ts';
import { lookUp } from '../upstream/lookup.ts';

/** How each operation that says so finds out what became of its keys in doubt. */
export function lookupsOf({ operations }: Config, executor: Executor): Map<string, Lookup> {
  const lookups = new Map<string, Lookup>();
  for (const { name, idempotency } of operations) {
    const { lookup } = idempotency;
    if (lookup) lookups.set(name, { ...lookup, ask: (transaction) => lookUp(executor, lookup, transaction) });
  }
  return lookups;
}
