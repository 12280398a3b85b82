import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { temporaryFolder } from '../../support/config.ts';

const ROOT = fileURLToPath(new URL('../../..', import.meta.url));

it('the bill of materials has every runtime package with its version and licence, and no other', () => {
  const file = join(temporaryFolder(), 'bill.cdx.json');
  execFileSync(process.execPath, [join(ROOT, 'scripts/sbom.ts'), file]);
  const bill = JSON.parse(readFileSync(file, 'utf8'));
  expect(bill).toMatchObject({ bomFormat: 'CycloneDX', metadata: { component: { name: 'oncegate' } } });
  const { packages } = JSON.parse(readFileSync(join(ROOT, 'package-lock.json'), 'utf8'));
  const runtime = Object.entries<{ version: string; dev?: boolean; optional?: boolean }>(packages)
    .filter(([path, { dev, optional }]) => path !== '' && !dev && !optional)
    .map(
      ([path, { version }]) =>
        `pkg:npm/${path.split('node_modules/').at(-1)?.replace('@', '%40')}@${version}`,
    );
  expect(bill.components.map(({ purl }: { purl: string }) => purl).sort()).toEqual(runtime.sort());
  for (const { licenses, name } of bill.components) expect(licenses, name).not.toHaveLength(0);
});
