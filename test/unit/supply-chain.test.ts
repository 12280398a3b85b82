import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it, onTestFinished } from 'vitest';

const read = (path: string) => JSON.parse(readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8'));

const LICENCES = ['0BSD', 'Apache-2.0', 'BSD-2-Clause', 'BSD-3-Clause', 'ISC', 'MIT'];
/** docs/releasing.md says why it is not a hundred. */
const MOST_PACKAGES = 108;

interface Locked {
  version: string;
  license?: string;
  integrity?: string;
  resolved?: string;
  hasInstallScript?: boolean;
  dev?: boolean;
  optional?: boolean;
}

const locked = Object.entries<Locked>(read('package-lock.json').packages).filter(([path]) => path !== '');
const runtime = locked.filter(([, { dev, optional }]) => !dev && !optional);

describe('the runtime packages', () => {
  it('have licences that permit everything we do', () => {
    const others = runtime.filter(([, { license = 'none' }]) => !LICENCES.includes(license));
    expect(others.map(([path, { license }]) => `${path}: ${license}`)).toEqual([]);
  });

  it('are in the bill of materials with their versions and licences, and no others', () => {
    const folder = mkdtempSync(join(tmpdir(), 'oncegate-bill-'));
    onTestFinished(() => rmSync(folder, { recursive: true }));
    const file = join(folder, 'bill.cdx.json');
    execFileSync(process.execPath, [fileURLToPath(new URL('../../scripts/sbom.ts', import.meta.url)), file]);
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
    expect(runtime.length).toBeLessThanOrEqual(MOST_PACKAGES);
  });
});

describe('all packages', () => {
  it('have a digest, and no address', () => {
    const wrong = locked.filter(([, { integrity, resolved }]) => !integrity || resolved !== undefined);
    expect(wrong.map(([path]) => path)).toEqual([]);
  });

  it('have exact versions in package.json', () => {
    const { dependencies, devDependencies, optionalDependencies } = read('package.json');
    const versions = Object.entries<string>({ ...dependencies, ...devDependencies, ...optionalDependencies });
    const inexact = versions.filter(
      ([, version]) => !/^(npm:[\w/-]+@)?\d+\.\d+\.\d+(-[\w.]+)?$/.test(version),
    );
    expect(inexact).toEqual([]);
  });

  it('each direct runtime one has its reason in ADR 5', () => {
    const reasons = readFileSync(
      new URL('../../docs/adr/0005-dependencies-and-pins.md', import.meta.url),
      'utf8',
    );
    for (const name of Object.keys(read('package.json').dependencies)) expect(reasons).toContain(name);
  });
});
