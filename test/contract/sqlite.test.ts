import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll } from 'vitest';
import { sqliteDamages } from './sqlite-damages.ts';
import { storeContract } from './store-contract.ts';

const root = mkdtempSync(join(tmpdir(), 'sqlite-'));
afterAll(() => rmSync(root, { recursive: true, force: true }));

storeContract({
  name: 'sqlite',
  place: () => ({ kind: 'sqlite', path: mkdtempSync(join(root, 'data-')) }),
  damages: sqliteDamages,
});
