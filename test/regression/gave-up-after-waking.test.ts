import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { bring } from '../contract/states.ts';
import { openStore, type StorePlace } from '../support/open-store.ts';
import { startRedis } from '../support/redis-server.ts';
import { duplicateOf } from '../support/requests.ts';
import { until } from '../support/until.ts';

const folder = mkdtempSync(join(tmpdir(), 'gave-up-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));
const { url } = await startRedis();

const places: StorePlace[] = [
  { kind: 'sqlite', path: folder },
  { kind: 'redis', url, prefix: 'test' },
];

// An owner was paused for longer than a lease, continued, and then lost its connection to the backend. It marked the key in
// doubt, but the key already counted as in doubt, so the mark had no effect and the key could not be resolved for another lease.
it.each(places)(
  'the key of an owner that continued after a pause and then gave up can be resolved at once ($kind)',
  async (place) => {
    const store = await openStore(place, { leaseMs: 1500 });
    try {
      const owner = await bring(store, 'executing');
      await until(async () => (await store.start(duplicateOf(owner))).kind === 'in_doubt');
      expect(await store.renew(owner)).toBe('lost');
      // On Redis the lease is taken after the answer was sent.
      await until(async () => (await store.renew(owner)) === 'ok');
      const note = { by: 'ada', reason: 'the books show it' };
      expect(await store.resolve(owner.scope, owner.token, { as: 'released' }, note)).toBe('alive');
      expect(await store.markInDoubt(owner)).toBe('ok');
      expect(await store.resolve(owner.scope, owner.token, { as: 'released' }, note)).toBe('ok');
    } finally {
      await store.close();
    }
  },
);
