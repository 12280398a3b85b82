import { expect, it, onTestFinished } from 'vitest';
import { type IdempotencyOptions, idempotency, sqliteStore } from '../../../src/index.ts';
import { temporaryFolder } from '../../support/config.ts';

/** It does not know the refunds of another handler, and would release their keys. */
const ask = async () => ({ kind: 'not_executed' }) as const;
const asking = { inDoubt: 'lookup', lookup: { ask } } as const;

async function opener() {
  const store = await sqliteStore({ path: temporaryFolder() });
  onTestFinished(() => store.close());
  return (options: Partial<IdempotencyOptions>) => {
    const protect = idempotency({ store, merchant: () => 'M-1', ...options });
    onTestFinished(() => protect.close(0));
    return protect;
  };
}

it('a lookup is not asked about the keys of another handler on its store', async () => {
  const other: Partial<IdempotencyOptions>[] = [{}, { inDoubt: 'lookup', lookup: { ask: () => ask() } }];
  for (const options of other)
    for (const [first, second] of [
      [asking, options],
      [options, asking],
    ] as const) {
      const open = await opener();
      open(first);
      expect(() => open(second)).toThrow('idempotency: operation: "handler" has another lookup');
      open({ ...second, operation: 'refund' });
    }
});

it('two handlers may have one name if no lookup confuses their keys, and a closed one gives its name back', async () => {
  const open = await opener();
  open({});
  open({});
  open({ ...asking, layer: 'inner' });
  const first = open({ ...asking, operation: 'payout' });
  const second = open({ ...asking, operation: 'payout' });
  await Promise.all([first.close(0), second.close(0)]);
  open({ operation: 'payout' });
});
