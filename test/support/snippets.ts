import { execFileSync } from 'node:child_process';
import { globSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { blocksOf } from './documents.ts';
import { ROOT } from './repository.ts';

/** The languages of blocks that the compiler checks, and the ending of their files. */
const ENDINGS: Record<string, string> = { js: 'mjs', ts: 'mts', cjs: 'cjs' };

/** Packages that documents name, and that no test installs: another framework, and middleware for it. */
const AMBIENT = ['@nestarc/idempotency', '@nestjs/common', '@nestjs/core'];

/** Writes every JavaScript and TypeScript block of all documents into a folder. Returns the names of the files. */
export function writeSnippets(folder: string): string[] {
  mkdirSync(folder, { recursive: true });
  const documents = globSync('**/*.md', { cwd: ROOT, exclude: ['**/node_modules', 'package'] });
  const names = documents.flatMap((document) =>
    blocksOf(document).flatMap(({ language, text }, i) => {
      const ending = ENDINGS[language];
      if (ending === undefined) return [];
      const name = `${document.replaceAll(/\W+/g, '-')}-${i}.${ending}`;
      writeFileSync(join(folder, name), text);
      return [name];
    }),
  );
  const ambient = AMBIENT.map((name) => `declare module '${name}';\n`);
  writeFileSync(join(folder, 'ambient.d.ts'), ambient.join(''));
  return ['ambient.d.ts', ...names];
}

/**
 * Compiles files of a folder as a strict application does. Packages are looked for in the folders above it.
 *
 * @param paths where packages are that an application has in another version
 * @param module the compiler's option
 * @throws {Error} with what the compiler says
 */
export function compileStrictly(
  folder: string,
  files: readonly string[],
  { paths = {}, module = 'nodenext' }: { paths?: Record<string, string[]>; module?: string } = {},
): void {
  const compilerOptions = {
    ...{ strict: true, exactOptionalPropertyTypes: true, skipLibCheck: true, noEmit: true },
    ...{ allowJs: true, checkJs: true, experimentalDecorators: true },
    ...{ target: 'es2024', module, types: ['node'], paths },
  };
  writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify({ compilerOptions, files }));
  try {
    execFileSync(join(ROOT, 'node_modules/.bin/tsc'), ['-p', folder], { encoding: 'utf8' });
  } catch (error) {
    throw new Error((error as { stdout: string }).stdout);
  }
}
