import { readFileSync } from 'node:fs';
import { parseDocument } from 'yaml';
import type { $ZodIssue } from 'zod/v4/core';
import { type Config, configSchema } from './schema.ts';

/** The file cannot be used. The message names each mistake on a line of its own. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError';
}

/** @throws {ConfigError} */
export function loadConfig(file: string, env: NodeJS.ProcessEnv): Config {
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch (error) {
    throw new ConfigError(`${file}: cannot be read (${(error as NodeJS.ErrnoException).code})`);
  }
  return parseConfig(text, env, file);
}

/** @param file only for messages. @throws {ConfigError} */
export function parseConfig(text: string, env: NodeJS.ProcessEnv, file = 'configuration'): Config {
  const document = parseDocument(text, { prettyErrors: true });
  const [broken] = document.errors;
  if (broken) throw new ConfigError(`${file}: is not valid YAML: ${broken.message.split('\n')[0]}`);
  const missing: string[] = [];
  const input: unknown = fillIn(document.toJS({ maxAliasCount: 100 }) ?? {}, env, missing);
  if (missing.length > 0) {
    throw new ConfigError(missing.map((name) => `${file}: the environment has no ${name}`).join('\n'));
  }
  const result = configSchema.safeParse(input);
  if (result.success) return result.data;
  throw new ConfigError(
    result.error.issues
      .flatMap((issue) => explain(issue, input))
      .map((line) => `${file}: ${line}`)
      .join('\n'),
  );
}

/** Puts the environment's values in the place of `${NAME}`, in values only. */
function fillIn(value: unknown, env: NodeJS.ProcessEnv, missing: string[]): unknown {
  if (typeof value === 'string') {
    return value.replace(/\$\{([A-Za-z_][A-Za-z0-9_]*)\}/g, (_, name: string) => {
      const found = env[name];
      if (found === undefined || found === '') missing.push(name);
      return found ?? '';
    });
  }
  if (Array.isArray(value)) return value.map((item) => fillIn(item, env, missing));
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, fillIn(item, env, missing)]));
}

/** Path, value, and what is allowed. */
function explain(issue: $ZodIssue, input: unknown): string[] {
  const path = issue.path
    .map((part) => (typeof part === 'number' ? `[${part}]` : `.${String(part)}`))
    .join('')
    .slice(1);
  if (issue.code === 'unrecognized_keys') {
    return issue.keys.map((key) => `${path ? `${path}.` : ''}${key}: is not an option`);
  }
  if (issue.code === 'invalid_union' && issue.errors.length > 0) {
    const allowed = issue.errors
      .flat()
      .map((error) => error.message)
      .join(', or ');
    return [`${path}: ${shown(path, valueAt(input, issue.path))} is not allowed: ${allowed}`];
  }
  const value = valueAt(input, issue.path);
  if (value === undefined) return [`${path}: is missing: ${issue.message}`];
  return [`${path}: ${shown(path, value)} is not allowed: ${issue.message}`];
}

function valueAt(input: unknown, path: readonly PropertyKey[]): unknown {
  return path.reduce<unknown>(
    (value, part) => (value as Record<PropertyKey, unknown> | undefined)?.[part],
    input,
  );
}

const SECRET = /token|pepper|replacewith|secret|password|url|nodes/i;

/** Never the value of an option that can hold a secret. */
function shown(path: string, value: unknown): string {
  if (SECRET.test(path)) return 'the value';
  return typeof value === 'object' ? 'the value' : JSON.stringify(value);
}
