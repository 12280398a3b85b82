import type { Check } from '../admin/application.ts';
import type { KeySource } from '../auth/key-source.ts';
import type { Config } from '../config/schema.ts';
import { policyWarnings } from '../idempotency/policy-warnings.ts';
import type { Store } from '../idempotency/store.ts';
import type { Lifecycle } from '../kernel/lifecycle.ts';
import { reachable } from '../upstream/reachable.ts';

/** What readiness hangs on. */
export async function readiness(
  { upstream: { url, connectTimeoutMs }, operations }: Config,
  { store, keys, lifecycle: { draining } }: { store: Store; keys: KeySource; lifecycle: Lifecycle },
): Promise<Check[]> {
  const [stored, upstream] = await Promise.all([store.health(), reachable(url, connectTimeoutMs)]);
  const { ok, detail } = keys.health();
  const warnings = policyWarnings(operations);
  const policies: Check = { name: 'operations', ok: true, detail: 'declared', warnings };
  return [
    { name: 'store', ...stored },
    { name: 'upstream', ...upstream },
    { name: 'keys', ok, detail },
    ...(warnings.length > 0 ? [policies] : []),
    { name: 'draining', ok: !draining, detail: draining ? 'shutting down' : 'serving' },
  ];
}
