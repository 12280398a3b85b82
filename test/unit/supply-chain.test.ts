import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { inImage, installed, locked } from '../../scripts/locked.ts';
import { temporaryFolder } from '../support/config.ts';
import { ROOT, read } from '../support/repository.ts';

const parsed = (path: string) => JSON.parse(read(path));

const LICENCES = ['0BSD', 'Apache-2.0', 'BSD-2-Clause', 'BSD-3-Clause', 'ISC', 'MIT'];
/** docs/releasing.md says why it is not a hundred. */
const MOST_PACKAGES = 108;

const runtime = [...installed, ...inImage];

describe('the runtime packages', () => {
  it('have licences that permit everything we do', () => {
    const others = runtime.filter(([, { license = 'none' }]) => !LICENCES.includes(license));
    expect(others.map(([path, { license }]) => `${path}: ${license}`)).toEqual([]);
  });

  it('are in the bill of materials with their versions and licences, and no others', () => {
    const file = join(temporaryFolder(), 'bill.cdx.json');
    execFileSync(process.execPath, [`${ROOT}scripts/sbom.ts`, file]);
    const bill = JSON.parse(readFileSync(file, 'utf8'));
    expect(bill).toMatchObject({ bomFormat: 'CycloneDX', metadata: { component: { name: 'oncegate' } } });
    const names = runtime.map(
      ([path, { version }]) =>
        `pkg:npm/${path.split('node_modules/').at(-1)?.replace('@', '%40')}@${version}`,
    );
    expect(bill.components.map(({ purl }: { purl: string }) => purl).sort()).toEqual(names.sort());
    for (const { licenses, name } of bill.components) expect(licenses, name).not.toHaveLength(0);
  });

  it('run nothing when they are installed', () => {
    expect(runtime.filter(([, { hasInstallScript }]) => hasInstallScript)).toEqual([]);
  });

  it('are not more than the documents say', () => {
    expect(installed.length).toBeLessThanOrEqual(MOST_PACKAGES);
  });
});

describe('all packages', () => {
  it('have a digest, and no address', () => {
    const wrong = locked.filter(([, { integrity, resolved }]) => !integrity || resolved !== undefined);
    expect(wrong.map(([path]) => path)).toEqual([]);
  });

  it('have exact versions in package.json', () => {
    const { dependencies, devDependencies, optionalDependencies } = parsed('package.json');
    const versions = Object.entries<string>({ ...dependencies, ...devDependencies, ...optionalDependencies });
    const inexact = versions.filter(
      ([, version]) => !/^(npm:[\w/-]+@)?\d+\.\d+\.\d+(-[\w.]+)?$/.test(version),
    );
    expect(inexact).toEqual([]);
  });

  it('each direct runtime one has its reason in ADR 5', () => {
    const reasons = read('docs/adr/0005-dependencies-and-pins.md');
    const { dependencies } = parsed('package.json');
    for (const name of ['pg 8', ...Object.keys(dependencies)]) expect(reasons).toContain(name);
  });
});
