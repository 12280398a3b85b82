import type { MoreConfig } from '../../support/config.ts';

const actions = (action: string) => ({ method: 'POST', path: '/v1/index.php', where: { action } });

/** The operations of the payment API; a checkout must have a key. */
export const operations: NonNullable<MoreConfig['operations']> = [
  { name: 'balance', match: { method: 'GET', path: '/v2/get_balance' } },
  { name: 'withdraw', match: actions('withdraw'), idempotency: { key: 'optional' } },
  { name: 'checkout', match: actions('checkout'), idempotency: { key: 'required' } },
];
