/**
 * `node scripts/interfaces.ts` writes docs/api/interfaces.json: the names that a minor version must keep (docs/releasing.md). Run it
 * for a release. A test fails if one of them is gone.
 */
import { globSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { configSchema } from '../src/config/schema.ts';
import { problem, problemCodes } from '../src/kernel/problem.ts';
import { CATALOGUE, type Definition } from '../src/observability/catalogue.ts';
import { LOG_EVENTS } from '../src/observability/log-events.ts';
import { optionPaths, pathsIn } from '../test/support/option-paths.ts';
import { publicDeclarations } from './api/declarations.ts';

export const INTERFACES = fileURLToPath(new URL('../docs/api/interfaces.json', import.meta.url));
const SOURCES = fileURLToPath(new URL('../src', import.meta.url));

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
    'lines of the log': LOG_EVENTS.flatMap(({ msg, fields }) => [
      msg,
      ...Object.keys(fields).map((field) => `${msg}: ${field}`),
    ]).sort(),
    package: exported(publicDeclarations()),
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

/** The exports of the package, and the members of its interfaces. */
function exported(declarations: string): string[] {
  const names: string[] = [];
  let within: string | undefined;
  for (const line of declarations.split('\n')) {
    const [, kind, name] =
      /^export (?:declare )?(?:async )?(interface|type|function|class|const) (\w+)/.exec(line) ?? [];
    if (name) names.push(name);
    if (name) within = kind === 'interface' && line.endsWith('{') ? name : undefined;
    const [, member] = /^ {4}(?:readonly )?(\w+)\??[:(]/.exec(line) ?? [];
    if (within && member) names.push(`${within}.${member}`);
  }
  return [...new Set(names)].sort();
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
