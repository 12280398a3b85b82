import { expect, it } from 'vitest';
import { expectClean, LIMIT } from './chaos/mix.ts';

it(
  'without faults, nothing is left in doubt by a gateway, and memory and descriptors are measured',
  LIMIT,
  async () => {
    const summary = await expectClean({ only: 'none', minutes: 0.1 });
    expect(summary).toMatchObject({ faults: {}, gatewayDeaths: 0, neverSent: 0 });
    expect(summary.payouts).toBeGreaterThan(100);
    expect(summary.growth.map(({ gateway, figure }) => `${gateway} ${figure}`)).toHaveLength(9);
    expect(summary.growth.filter(({ second, last }) => !(second > 0 && last > 0))).toEqual([]);
  },
);
