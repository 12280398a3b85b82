import { fileURLToPath } from 'node:url';
import type { ConfigInput } from '../../support/config.ts';
import type { Backend } from './backend.ts';
import { ADMIN_TOKEN } from './operators.ts';
import type { Topology } from './topology.ts';

export const GATEWAYS = 3;

/** The lease of most gateways under test; faults last about as long. */
export const LEASE_MS = 1500;

/**
 * One gateway has other lifetimes than the rest, all of them shorter. If it judged the records of the others by its own,
 * it would take living owners for dead; if they judged its records by theirs, its records would never expire. Its
 * retention is shorter than a ten-minute run, so that keys in doubt outlive it, and longer than a merchant retries.
 */
const SHORTER = { leaseMs: 1100, retentionMs: 240_000, inDoubtRetentionMs: 86_400_000 };
const USUAL = { leaseMs: LEASE_MS, retentionMs: 86_400_000, inDoubtRetentionMs: 2_592_000_000 };

const SANDBOX_KEYS = fileURLToPath(new URL('../../../src/sandbox/keys.yaml', import.meta.url));

/** The recommended configuration, with shorter times. */
export function configOf(topology: Topology, backend: Backend, number: number): ConfigInput {
  const config = topology.configFor?.(number) ?? topology.config;
  const { leaseMs, ...lifetimes } = number === 2 ? SHORTER : USUAL;
  const match = { method: 'POST', path: '/v1/index.php' };
  return {
    ...config,
    lock: { ...config.lock, leaseMs },
    upstream: {
      url: `http://${backend.wire.host}:${backend.wire.port}`,
      connectTimeoutMs: 1000,
      responseTimeoutMs: 5000,
    },
    admin: { token: ADMIN_TOKEN },
    auth: { keys: { source: 'file', path: SANDBOX_KEYS } },
    idempotency: { completeRetryMs: 500, ...lifetimes },
    operations: [
      {
        name: 'withdraw',
        match: { ...match, where: { action: 'withdraw' } },
        idempotency: { key: 'optional', waitMs: 2000 },
      },
      // For the fault in which the key of a paused owner is sent again; merchants do not use it.
      {
        name: 'checkout',
        match: { ...match, where: { action: 'checkout' } },
        idempotency: { key: 'optional', waitMs: 2000, inDoubt: 'retry' },
      },
    ],
    shutdown: { delayMs: 200, graceMs: 5000 },
    log: { level: 'warn' },
  };
}
