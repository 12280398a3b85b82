import { expect, it } from 'vitest';
import { payUnderKills } from './transaction-kills.ts';

it('an application that is killed five times in its transactions pays each key once, and leaves none in doubt', async () => {
  const { broken, told, ...verdict } = await payUnderKills(5);
  expect(verdict).toEqual({ kills: 5, lost: [], twice: [], inDoubt: [] });
  expect(broken).toBeGreaterThan(0);
  expect(told).toBeGreaterThan(5);
}, 300_000);
