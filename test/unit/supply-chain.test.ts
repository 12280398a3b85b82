import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';

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
