import type { Check } from '../admin/application.ts';
import type { KeySource } from '../auth/key-source.ts';
import { keyWarnings } from '../auth/key-warnings.ts';
import type { Config } from '../config/schema.ts';
import { policyWarnings } from '../idempotency/policy-warnings.ts';
import type { Store } from '../idempotency/store.ts';
import type { Lifecycle } from '../kernel/lifecycle.ts';
import { reachable } from '../upstream/reachable.ts';

/** What an operator ought to know at start, a line each. It names keys, so /readyz does not show all of it. */
export async function startWarnings(
  config: Pick<Config, 'operations' | 'idempotency'>,
  { store, keys }: { store?: Store; keys: KeySource },
  nowMs: number,
): Promise<string[]> {
  const names = config.operations.map(({ name }) => name);
  const found = {
    store: (await store?.health())?.warnings ?? [],
    operations: policyWarnings(config),
    keys: keyWarnings(keys.entries(), names, nowMs),
  };
  return Object.entries(found).flatMap(([about, texts]) => texts.map((text) => `${about}: ${text}`));
}

/** What readiness hangs on. */
export async function readiness(
  config: Config,
  { store, keys, lifecycle: { draining } }: { store: Store; keys: KeySource; lifecycle: Lifecycle },
): Promise<Check[]> {
  const { url, connectTimeoutMs } = config.upstream;
  const [stored, upstream] = await Promise.all([store.health(), reachable(url, connectTimeoutMs)]);
  const { ok, detail } = keys.health();
  const warnings = policyWarnings(config);
  const policies: Check = { name: 'operations', ok: true, detail: 'declared', warnings };
  return [
    { name: 'store', ...stored },
    { name: 'upstream', ...upstream },
    { name: 'keys', ok, detail },
    ...(warnings.length > 0 ? [policies] : []),
    { name: 'draining', ok: !draining, detail: draining ? 'shutting down' : 'serving' },
  ];
}
