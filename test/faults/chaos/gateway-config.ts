import { fileURLToPath } from 'node:url';
import type { ConfigInput } from '../../support/config.ts';
import type { Backend } from './backend.ts';
import { ADMIN_TOKEN } from './operators.ts';
import type { Topology } from './topology.ts';

/** Of the gateways under test; faults last about as long. */
export const LEASE_MS = 1500;

const SANDBOX_KEYS = fileURLToPath(new URL('../../../config/sandbox-keys.yaml', import.meta.url));

/** What is recommended, with shorter times. */
export function configOf({ config }: Topology, backend: Backend): ConfigInput {
  return {
    ...config,
    lock: { ...config.lock, leaseMs: LEASE_MS },
    upstream: {
      url: `http://127.0.0.1:${backend.wire.port}`,
      connectTimeoutMs: 1000,
      responseTimeoutMs: 5000,
    },
    admin: { token: ADMIN_TOKEN },
    auth: { keys: { source: 'file', path: SANDBOX_KEYS } },
    idempotency: { settleRetryMs: 500 },
    operations: [
      {
        name: 'withdraw',
        match: { method: 'POST', path: '/v1/index.php', body: { action: 'withdraw' } },
        idempotency: { key: 'optional', waitMs: 2000 },
      },
    ],
    shutdown: { delayMs: 200, graceMs: 5000 },
    log: { level: 'warn' },
  };
}
