import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll } from 'vitest';
import { seal, unseal } from '../../src/idempotency/stores/lmdb/envelope.ts';
import { rewriteLmdb } from '../support/lmdb-files.ts';
import { storeContract } from './store-contract.ts';

const root = mkdtempSync(join(tmpdir(), 'lmdb-'));
afterAll(() => rmSync(root, { recursive: true, force: true }));

storeContract({
  name: 'lmdb',
  secondBegin: 'stale',
  place: () => ({ kind: 'lmdb', path: mkdtempSync(join(root, 'data-')) }),
  rewrite: async (place, scope, change) => {
    if (place.kind !== 'lmdb') throw new TypeError('not an lmdb place');
    await rewriteLmdb(place.path, scope, (stored) => {
      const { stamp, record } = unseal(stored);
      return seal(stamp, change(record));
    });
  },
});
