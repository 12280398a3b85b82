import { globSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { VERSION_PLACES } from '../../scripts/version.ts';
import { thisBuild } from '../../src/lib/program.ts';
import { ROOT, read } from '../support/repository.ts';

const { version } = thisBuild();

describe('the version', () => {
  it('is the same in every place that names it', () => {
    for (const { file, pattern } of VERSION_PLACES) {
      const found = [...read(file).matchAll(pattern)].map(([, , named]) => named);
      expect([file, [...new Set(found)]]).toEqual([file, [version]]);
    }
  });

  it('is the one of every image and every file of a release that the documents and manifests name', () => {
    const files = globSync(['*.{md,yaml}', 'Dockerfile', 'config/**', 'deploy/**', 'docs/**'], { cwd: ROOT });
    const named = files
      .filter((path) => statSync(join(ROOT, path)).isFile() && path !== 'CHANGELOG.md')
      .flatMap((path) =>
        [...read(path).matchAll(/\boncegate[-:@](\d+\.\d+\.\d+)/g)].map(([, found]) => `${path}: ${found}`),
      );
    expect(named.length).toBeGreaterThan(2);
    expect(named.filter((line) => !line.endsWith(`: ${version}`))).toEqual([]);
  });

  it('is the newest one of the changelog, which says what to do on the way to it', () => {
    const [unreleased, newest = ''] = read('CHANGELOG.md')
      .split(/^(?=## )/m)
      .slice(1);
    expect(unreleased).toMatch(/^## \[Unreleased\]/);
    expect(newest).toMatch(
      new RegExp(`^## \\[${version.replaceAll('.', '\\.')}\\] - \\d{4}-\\d\\d-\\d\\d\n`),
    );
    // There is no way to the first version.
    if (version.endsWith('.0.0') && version !== '1.0.0')
      expect(newest).toMatch(/^### Upgrade\n\n[\s\S]*^1\. /m);
  });
});
