/** Where records stand in the embedded store, and that a claim finds them in either place. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it, onTestFinished } from 'vitest';
import type { Entry, Standing } from '../../src/idempotency/stores/lmdb/entry.ts';
import { type Environment, openEnvironment } from '../../src/idempotency/stores/lmdb/environment.ts';
import { auditKey, settledKey, unsettledKey } from '../../src/idempotency/stores/lmdb/keys.ts';
import { Records } from '../../src/idempotency/stores/lmdb/records.ts';
import { Ages, currentBoot } from '../../src/idempotency/stores/lmdb/stamp.ts';
import type { Scope } from '../../src/kernel/brands.ts';
import { systemClock } from '../../src/kernel/clock.ts';
import { newRequest, paid } from '../support/requests.ts';

const RETENTION_MS = 1000;
let monotonicMs = 1_000_000;
const ages = new Ages(currentBoot(), { ...systemClock, monotonicMs: () => monotonicMs });

async function openRecords(): Promise<{ environment: Environment; records: Records }> {
  const path = mkdtempSync(join(tmpdir(), 'lmdb-records-'));
  const environment = await openEnvironment(path);
  onTestFinished(async () => {
    await environment.close();
    rmSync(path, { recursive: true, force: true });
  });
  return { environment, records: new Records(environment, ages, RETENTION_MS) };
}

function aRecord(state: 'claimed' | 'settled', { scope, ...request } = newRequest()) {
  const times = { createdAtMs: 1, changedAtMs: 2 };
  const settlement = state === 'settled' ? { settlement: paid() } : {};
  const next: Standing = { stamp: ages.now(), record: { ...request, state, ...times, ...settlement } };
  return { scope, next };
}

const keysOf = ({ records }: Environment) => {
  records.resetReadTxn();
  return [...records.getKeys()];
};

async function stands(records: Records, state: 'claimed' | 'settled') {
  const { scope, next } = aRecord('claimed');
  expect(await records.add(scope, undefined, next)).toBe(true);
  const entry = records.read(scope) as Entry;
  if (state === 'settled') {
    const settled = { ...entry.record, state, settlement: paid() };
    expect(await records.replace(scope, entry, { stamp: entry.stamp, record: settled })).toBe(true);
  }
  return { scope, entry: records.read(scope) as Entry };
}

describe('the embedded store', () => {
  it('keeps what is not settled in front of all that is, and each record once', async () => {
    const { environment, records } = await openRecords();
    const settled = await Promise.all(Array.from({ length: 20 }, () => stands(records, 'settled')));
    const claimed = await Promise.all(Array.from({ length: 20 }, () => stands(records, 'claimed')));
    const inOrder = (keys: Buffer[]) => keys.toSorted(Buffer.compare);
    expect(keysOf(environment)).toEqual([
      ...inOrder(claimed.map(({ scope }) => unsettledKey(scope))),
      ...inOrder(settled.map(({ scope }) => settledKey(scope))),
    ]);
  });

  it.each(['claimed', 'settled'] as const)('adds nothing where it is %s by now', async (state) => {
    const { environment, records } = await openRecords();
    const { scope, entry } = await stands(records, state);
    const keys = keysOf(environment);
    const { next } = aRecord('claimed');
    // Beside claims that may be added, in the same commit.
    const added = await Promise.all(
      Array.from({ length: 21 }, (_, i) =>
        records.add(i === 10 ? scope : aRecord('claimed').scope, undefined, next),
      ),
    );
    expect(added.map((one, i) => one === (i !== 10))).not.toContain(false);
    expect(keysOf(environment)).toHaveLength(keys.length + 20);
    expect(records.read(scope)).toEqual(entry);
  });

  it.each(['claimed', 'settled'] as const)(
    'adds once for a record past its retention that was %s',
    async (state) => {
      const { environment, records } = await openRecords();
      const { scope } = await stands(records, state);
      monotonicMs += RETENTION_MS;
      const { expired } = records.read(scope) as { expired: Entry };
      const racers = Array.from({ length: 8 }, () => aRecord('claimed').next);
      const won = await Promise.all(racers.map((next) => records.add(scope, expired, next)));
      expect(won.filter(Boolean)).toHaveLength(1);
      expect(keysOf(environment)).toEqual([unsettledKey(scope)]);
      expect(records.read(scope)).toMatchObject({ record: racers[won.indexOf(true)]?.record });
    },
  );

  it.each(['claimed', 'settled'] as const)('changes nothing where another version is %s', async (state) => {
    const { environment, records } = await openRecords();
    const { scope, entry } = await stands(records, state);
    const before = { ...entry, version: entry.version + 1 };
    const also = () => void environment.records.put(auditKey(scope, 0), Buffer.from('also'), 1);
    for (const next of [aRecord('claimed').next, aRecord('settled').next]) {
      expect(await records.replace(scope, before, next)).toBe(false);
      expect(await records.replace(scope, before, next, also)).toBe(false);
    }
    expect(await records.remove(before, also)).toBe(false);
    expect(keysOf(environment)).toEqual([entry.key]);
    expect(records.read(scope)).toEqual(entry);
    expect(await records.remove(entry, also)).toBe(true);
    expect(keysOf(environment)).toEqual([auditKey(scope as Scope, 0)]);
  });

  it('takes thousands of changes of one turn', async () => {
    const { environment, records } = await openRecords();
    const standing = await Promise.all(
      Array.from({ length: 1000 }, (_, i) => stands(records, i % 2 ? 'claimed' : 'settled')),
    );
    const next = aRecord('claimed').next;
    const [won, moved] = await Promise.all([
      Promise.all(
        Array.from({ length: 2000 }, (_, i) =>
          records.add(i % 2 ? (standing[i >> 1]?.scope as Scope) : newRequest().scope, undefined, next),
        ),
      ),
      Promise.all(standing.map(({ scope, entry }) => records.replace(scope, entry, aRecord('settled').next))),
    ]);
    expect(won).toEqual(Array.from({ length: 2000 }, (_, i) => i % 2 === 0));
    expect(moved).not.toContain(false);
    const settled = standing.map(({ scope }) => settledKey(scope)).toSorted(Buffer.compare);
    expect(keysOf(environment).slice(1000)).toEqual(settled);
    expect(keysOf(environment)).toHaveLength(2000);
  });
});
