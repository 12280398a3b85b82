/**
 * `node scripts/interfaces.ts` writes docs/interfaces.json: the names that a minor version must keep (docs/releasing.md). Run it
 * for a release. A test fails if one of them is gone.
 */
import { execFileSync } from 'node:child_process';
import { globSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { configSchema } from '../src/config/schema.ts';
import { problem } from '../src/lib/problem.ts';
import { problemCodes } from '../src/lib/problem-table.ts';
import { CATALOGUE } from '../src/telemetry/catalogue.ts';
import type { Definition } from '../src/telemetry/definition.ts';
import { EVENTS } from '../src/telemetry/events.ts';
import { optionPaths, pathsIn } from '../test/support/option-paths.ts';
import { root } from './root.ts';

export const INTERFACES = join(root, 'docs', 'interfaces.json');
const SOURCES = join(root, 'src');

/** By what docs/releasing.md calls the interface. */
export type Interfaces = Record<string, readonly string[]>;

export function interfaces(): Interfaces {
  return {
    options: [...optionPaths(configSchema)].sort(),
    'defaults of options': defaults(),
    'problem codes': problemCodes.map((code) => `${code} ${problem(code, '').status}`).sort(),
    metrics: (Object.values(CATALOGUE) as Definition[])
      .map(({ type, name, labels }) => `${type} ${name}{${Object.keys(labels).join(',')}}`)
      .sort(),
    'lines of the log': Object.values(EVENTS)
      .flatMap(({ message, fields }) => [
        message,
        ...Object.keys(fields).map((field) => `${message}: ${field}`),
      ])
      .sort(),
    package: publicDeclarations()
      .flatMap(({ name, members }) => [name, ...[...members.keys()].map((member) => `${name}.${member}`)])
      .sort(),
    commands: commands(),
  };
}

/** What an option is if the file does not have it. */
function defaults(): string[] {
  const config = configSchema.parse({ upstream: { url: 'http://127.0.0.1:9000' } });
  const value = (path: string) =>
    path.split('.').reduce<unknown>((section, name) => (section as Record<string, unknown>)?.[name], config);
  return [...pathsIn(config)]
    .filter((path) => path !== '' && !path.includes('[]') && typeof value(path) !== 'object')
    .map((path) => `${path}: ${JSON.stringify(value(path))}`)
    .sort();
}

/** What the package exports, as its `.d.ts` files declare it. */
export interface Declaration {
  name: string;
  /** Its docstring; empty without one. */
  docs: string;
  /** Of an interface: the docstrings of its members, by name. */
  members: Map<string, string>;
}

/** @throws {Error} if an export is not declared where `src/index.ts` says */
export function publicDeclarations(): Declaration[] {
  const folder = mkdtempSync(join(tmpdir(), 'oncegate-declarations-'));
  try {
    const options = ['-p', 'tsconfig.build.json', '--emitDeclarationOnly', '--noCheck', '--outDir', folder];
    execFileSync(join(root, 'node_modules', '.bin', 'tsc'), options, { cwd: root });
    const read = (path: string) => readFileSync(join(folder, path.replace(/\.ts$/, '.d.ts')), 'utf8');
    const index = read('index.ts');
    const exported = [...index.matchAll(/^export (?:type )?\{([^}]*)\} from '\.\/([^']+)';$/gm)];
    if (exported.length !== index.match(/^export /gm)?.length)
      throw new Error('src/index.ts must only have exports such as: export { name } from "./file.ts"');
    return exported.flatMap(([, names = '', path = '']) => {
      const declared = names.split(',').map((item) => item.replace('type ', '').trim());
      return declared.filter((name) => name !== '').map((name) => declarationIn(read(path), name));
    });
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

const DOCS = String.raw`(/\*\*(?:(?!\*/).)*\*/\s+)?`;

function declarationIn(text: string, name: string): Declaration {
  const kinds = '(interface|type|function|class|const)';
  const found = new RegExp(`^${DOCS}export (?:declare )?${kinds} ${name}\\b(.*?)(?=^\\S|(?![^]))`, 'ms').exec(
    text,
  );
  if (!found) throw new Error(`${name} is not declared`);
  const [, docs = '', kind, body = ''] = found;
  // The compiler indents each member by four spaces.
  const members =
    kind === 'interface' ? body.matchAll(new RegExp(`${DOCS}^ {4}(?:readonly )?(\\w+)\\??[:(]`, 'gms')) : [];
  return { name, docs, members: new Map([...members].map(([, about = '', member = '']) => [member, about])) };
}

/** The commands with the options that their usage names. */
function commands(): string[] {
  const found = globSync('{main,cli/**/*}.ts', { cwd: SOURCES }).flatMap((file) => {
    const usages = readFileSync(join(SOURCES, file), 'utf8').matchAll(/ = `oncegate (.*?)`;/gs);
    return [...usages].flatMap(([, text = '']) => {
      const [command = ''] = text.split(/:| [[(-]|\n/);
      return [...text.matchAll(/--[a-z]+(?:-[a-z]+)*/g)].map(([option]) => `${command} ${option}`);
    });
  });
  return [...new Set(found)].sort();
}

if (import.meta.main) writeFileSync(INTERFACES, `${JSON.stringify(interfaces(), undefined, 2)}\n`);
