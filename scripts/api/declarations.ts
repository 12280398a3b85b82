import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

export const ROOT = fileURLToPath(new URL('../..', import.meta.url));

/** The document that `npm run api` writes. */
export const REFERENCE = join(ROOT, 'docs', 'api', 'README.md');

/** What the form of the reference depends on. */
const SETTINGS = ['package.json', 'package-lock.json', 'typedoc.json', 'markdown.ts'];

/**
 * The package's public declarations with their docstrings, as one module: what `src/index.ts` exports, in its order, and
 * nothing else. The reference is made of this text only, so internals can neither appear in it nor make it stale.
 *
 * @throws {Error} if an exported declaration is not found
 */
export function publicDeclarations(): string {
  const folder = mkdtempSync(join(tmpdir(), 'oncegate-api-'));
  try {
    const compiler = join(ROOT, 'node_modules', '.bin', 'tsc');
    const options = ['-p', 'tsconfig.build.json', '--emitDeclarationOnly', '--noCheck', '--outDir', folder];
    const { status, stdout, error } = spawnSync(compiler, options, { cwd: ROOT, encoding: 'utf8' });
    if (status !== 0) throw new Error(`tsc failed: ${error?.message ?? stdout}`);
    return bundled((path) => readFileSync(join(folder, path.replace(/\.ts$/, '.d.ts')), 'utf8'));
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/**
 * The last line of the reference: a digest of what the reference depends on, and of its own text. With another digest, the
 * reference is stale, or was changed by hand.
 */
export function digestLine(declarations: string, markdown: string): string {
  const settings = SETTINGS.map((name) => readFileSync(join(ROOT, 'scripts', 'api', name), 'utf8'));
  const digest = createHash('sha256').update(JSON.stringify([declarations, markdown, ...settings]));
  return `<!-- digest: ${digest.digest('hex')} -->\n`;
}

/** @param declarationsOf the declarations that the compiler makes of a source file, by its path within src */
export function bundled(declarationsOf: (path: string) => string): string {
  const index = declarationsOf('index.ts');
  const [about = ''] = index.match(/^\/\*\*.*?\*\//s) ?? [];
  const chunks: string[] = [];
  const imports = new Map<string, string>();
  const exported = [...index.matchAll(/^export (?:type )?\{([^}]*)\} from '\.\/([^']+)';$/gm)];
  if (exported.length !== index.match(/^export /gm)?.length)
    throw new Error('src/index.ts must only have exports such as: export { name } from "./file.ts"');
  for (const [, names = '', path = ''] of exported) {
    const statements = statementsOf(declarationsOf(path));
    for (const statement of statements) collectImports(statement, imports);
    for (const name of names.split(',').map((item) => item.replace('type ', '').trim()))
      if (name !== '') chunks.push(declarationOf(statements, name, path));
  }
  const used = [...imports].filter(([name]) =>
    chunks.some((chunk) => new RegExp(`\\b${name}\\b`).test(chunk)),
  );
  return `${[about, ...used.map(([, line]) => line).sort(), ...chunks].join('\n')}\n`;
}

/** Adds what a statement imports from packages and from Node: a line for each name. */
function collectImports(statement: string, lines: Map<string, string>): void {
  const [, names = '', from = ''] =
    statement.match(/^import (?:type )?\{([^}]*)\} from '([^.'][^']*)';/) ?? [];
  for (const item of names.split(',').map((text) => text.replace('type ', '').trim()))
    if (item !== '') lines.set(item.replace(/^.* as /, ''), `import type { ${item} } from '${from}';`);
}

/** The statements of a module of declarations, each with the docstring before it. The compiler indents what is within one. */
function statementsOf(text: string): string[] {
  const lines = text.split('\n');
  const starts = lines.flatMap((line, at) =>
    /^(?:import|export|declare|interface|type)\b/.test(line) ? [firstLineOf(lines, at)] : [],
  );
  return starts.map((start, at) =>
    lines
      .slice(start, starts[at + 1])
      .join('\n')
      .trimEnd(),
  );
}

/** TypeDoc drops the class of an error that is written this way. */
const THROWS = /@throws \{(\w+)\}/g;

/** The line where the docstring of a statement begins; without a docstring, the line of the statement itself. */
function firstLineOf(lines: readonly string[], statement: number): number {
  if (!lines[statement - 1]?.endsWith('*/')) return statement;
  return lines.findLastIndex((line, at) => at < statement && line.startsWith('/**'));
}

function declarationOf(statements: readonly string[], name: string, path: string): string {
  const declared = new RegExp(
    `^export (?:declare )?(?:async )?(?:interface|type|function|class|const) ${name}\\b`,
    'm',
  );
  const found = statements.filter((statement) => declared.test(statement));
  if (found.length === 0) throw new Error(`src/${path} does not declare ${name}`);
  return found.map(withoutSchemas).join('\n').replace(THROWS, '@throws `$1`');
}

/**
 * A type that a schema makes would show all its options, without a word on them. Its docstring says where they are described.
 */
const withoutSchemas = (statement: string): string =>
  statement.replace(/^export type (\w+) = (?:\w+<)?z\.input<[^;]*;/m, 'export interface $1 {}');
