/**
 * `npm run sbom [FILE]`: writes the bill of materials of the runtime packages, and of those in the image, in CycloneDX 1.5, made by npm
 * from the lock file.
 * Default: oncegate-VERSION.cdx.json.
 */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { inImage, installed } from './locked.ts';
import { root } from './root.ts';

const read = (name: string) => JSON.parse(readFileSync(join(root, name), 'utf8'));
const { name, version, description, license, dependencies, optionalDependencies } = read('package.json');
const file = process.argv[2] ?? join(root, `${name}-${version}.cdx.json`);

// `npm sbom --omit dev` leaves out packages that are needed at run time and by a development package. So npm sees a lock file
// without the latter.
const withPg = { ...dependencies, pg: optionalDependencies.pg };
const manifest = { name, version, description, license, dependencies: withPg };
const lock = read('package-lock.json');
const packages = { ...Object.fromEntries([...installed, ...inImage]), '': manifest };

const folder = mkdtempSync(join(tmpdir(), `${name}-`));
try {
  writeFileSync(join(folder, 'package.json'), JSON.stringify(manifest));
  writeFileSync(join(folder, 'package-lock.json'), JSON.stringify({ ...lock, packages }));
  const options = ['sbom', '--sbom-format', 'cyclonedx', '--package-lock-only'];
  const bill = JSON.parse(execFileSync('npm', options, { cwd: folder, encoding: 'utf8' }));
  // npm takes the name of the folder.
  bill.metadata.component.name = name;
  writeFileSync(file, `${JSON.stringify(bill, undefined, 2)}\n`);
  process.stdout.write(`${file}: ${bill.components.length} packages\n`);
} finally {
  rmSync(folder, { recursive: true });
}
