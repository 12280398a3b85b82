import { expect, it } from 'vitest';
import { onPostgres, onSqlite, payUnderKills } from './transaction-kills.ts';

it('an application that is killed 100 times in its transactions pays each key once, and leaves none in doubt', async () => {
  const { broken, told, ...verdict } = await payUnderKills(100, await onPostgres());
  expect(verdict).toEqual({ kills: 100, lost: [], twice: [], inDoubt: [] });
  expect(broken).toBeGreaterThan(0);
  expect(told).toBeGreaterThan(100);
}, 900_000);

it('an application that is killed 100 times in its transactions on SQLite pays each key once, and leaves none in doubt', async () => {
  const { broken, told, ...verdict } = await payUnderKills(100, await onSqlite());
  expect(verdict).toEqual({ kills: 100, lost: [], twice: [], inDoubt: [] });
  expect(broken).toBeGreaterThan(0);
  expect(told).toBeGreaterThan(100);
}, 900_000);
