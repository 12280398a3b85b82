import { expect, it } from 'vitest';
import { payUnderKills } from './transaction-kills.ts';

it('an application that is killed 8 times in its transactions pays each key once, and leaves none in doubt', async () => {
  const { broken, told, ...verdict } = await payUnderKills(8);
  expect(verdict).toEqual({ kills: 8, lost: [], twice: [], inDoubt: [] });
  expect(broken).toBeGreaterThan(0);
  expect(told).toBeGreaterThan(8);
}, 300_000);
