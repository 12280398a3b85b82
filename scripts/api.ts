/**
 * `npm run api`: writes docs/api/README.md, the reference of the npm package, from the docstrings of what `src/index.ts` exports.
 * A unit test fails when it does not belong to the sources.
 */
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { digestLine, publicDeclarations, REFERENCE, ROOT } from './api/declarations.ts';
import { readable } from './api/markdown.ts';

/** TypeDoc's Markdown. TypeDoc's warnings are errors: an exported member without a docstring, a type that is not exported. */
function typedoc(declarations: string): string {
  // Within the project, so that the types of Node and of pino are found.
  mkdirSync(join(ROOT, '.tmp'), { recursive: true });
  const folder = mkdtempSync(join(ROOT, '.tmp', 'api-'));
  try {
    writeFileSync(join(folder, 'index.ts'), declarations);
    // Not a file of declarations: in these, the compiler takes names that there are not for `any`.
    const compilerOptions = { noUnusedLocals: false };
    const tsconfig = {
      extends: join(ROOT, 'tsconfig.json'),
      compilerOptions,
      files: ['index.ts'],
      include: [],
    };
    writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify(tsconfig));
    const packages = join(ROOT, 'scripts', 'api');
    const program = join(packages, 'node_modules', 'typedoc', 'bin', 'typedoc');
    const options = ['--options', join(packages, 'typedoc.json'), '--tsconfig', 'tsconfig.json'];
    const { status } = spawnSync(process.execPath, [program, ...options, '--out', 'out', 'index.ts'], {
      cwd: folder,
      stdio: 'inherit',
    });
    if (status !== 0) throw new Error(`TypeDoc failed (exit code ${status})`);
    return readFileSync(join(folder, 'out', 'README.md'), 'utf8');
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

const declarations = publicDeclarations();
const markdown = readable(typedoc(declarations));
mkdirSync(dirname(REFERENCE), { recursive: true });
writeFileSync(REFERENCE, markdown + digestLine(declarations, markdown));
