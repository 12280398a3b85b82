import { fileURLToPath } from 'node:url';
import type { ConfigInput } from '../../support/config.ts';
import type { Backend } from './backend.ts';
import { ADMIN_TOKEN } from './operators.ts';
import type { Topology } from './topology.ts';

export const GATEWAYS = 3;

/** The lease of most gateways under test; faults last about as long. */
export const LEASE_MS = 1500;

/** One gateway has another lease. If it judged the records of the others by its own, it would take living owners for dead. */
const SHORTER_LEASE_MS = 1100;

const SANDBOX_KEYS = fileURLToPath(new URL('../../../src/sandbox/keys.yaml', import.meta.url));

/** The recommended configuration, with shorter times. */
export function configOf(topology: Topology, backend: Backend, number: number): ConfigInput {
  const config = topology.configFor?.(number) ?? topology.config;
  return {
    ...config,
    lock: { ...config.lock, leaseMs: number === 2 ? SHORTER_LEASE_MS : LEASE_MS },
    upstream: {
      url: `http://${backend.wire.host}:${backend.wire.port}`,
      connectTimeoutMs: 1000,
      responseTimeoutMs: 5000,
    },
    admin: { token: ADMIN_TOKEN },
    auth: { keys: { source: 'file', path: SANDBOX_KEYS } },
    idempotency: { completeRetryMs: 500 },
    operations: [
      {
        name: 'withdraw',
        match: { method: 'POST', path: '/v1/index.php', where: { action: 'withdraw' } },
        idempotency: { key: 'optional', waitMs: 2000 },
      },
    ],
    shutdown: { delayMs: 200, graceMs: 5000 },
    log: { level: 'warn' },
  };
}
