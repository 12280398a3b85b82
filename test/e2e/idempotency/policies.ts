import type { MoreConfig } from '../../support/config.ts';

type Operation = NonNullable<MoreConfig['operations']>[number];
type Idempotency = NonNullable<Operation['idempotency']>;
export type LookupInput = NonNullable<Idempotency['lookup']>;

export const LOOKUP_TOKEN = 'token-of-the-gateway-itself';

/** Short enough to lapse within a test, long enough for a loaded machine to renew it in time. */
export const LEASE_MS = 1500;

const withPolicy = (idempotency: Idempotency, leaseMs = LEASE_MS): MoreConfig => ({
  lock: { leaseMs },
  operations: [
    {
      name: 'withdraw',
      match: { method: 'POST', path: '/v1/index.php', where: { action: 'withdraw' } },
      idempotency: { key: 'optional', ...idempotency },
    },
  ],
});

export const holding: MoreConfig = withPolicy({});
export const retrying: MoreConfig = withPolicy({ inDoubt: 'retry' });

/** A lookup at the sandbox with short pauses. */
export function lookingUp(lookup: Partial<LookupInput> = {}, leaseMs = LEASE_MS): MoreConfig {
  const all = {
    path: '/v1/transactions?merchant={merchant}&key={key}',
    headers: { authorization: `Bearer ${LOOKUP_TOKEN}` },
    completedStatus: 201,
    released: [404],
    releaseAfterMs: leaseMs,
    firstAfterMs: 20,
    maxPauseMs: 50,
    ...lookup,
  };
  return {
    ...withPolicy({ inDoubt: 'lookup', lookup: all }, leaseMs),
    upstream: { responseTimeoutMs: leaseMs },
  };
}
