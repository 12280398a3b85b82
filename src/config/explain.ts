import { diff } from 'node:util';
import type * as z from 'zod';
import type { $ZodIssue } from 'zod/v4/core';
import { optionsAt } from './json-schema.ts';

/**
 * One line for each mistake of an issue: path, value, and what is allowed.
 *
 * @param written the file's content with its placeholders, so that no message shows a value from the environment
 * @param placeOf where an option is written in the file, if that is known
 */
export function explain(
  issue: $ZodIssue,
  written: unknown,
  placeOf: (path: readonly PropertyKey[]) => string | undefined,
): string[] {
  const path = pathText(issue.path);
  if (issue.code === 'unrecognized_keys') {
    return issue.keys.map((key) => {
      const place = placeOf([...issue.path, key]);
      // In a flow mapping, a comma in a secret without quotes ends the secret, and its rest is a member without a value.
      if (valueAt(written, [...issue.path, key]) === null)
        return `${path ? `${path}: ` : ''}a member without a value is not an option; a value with a comma needs quotes${place ? ` (${place})` : ''}`;
      return `${path ? `${path}.` : ''}${key}: is not an option${hintFor(key, issue.path)}${place ? ` (${place})` : ''}`;
    });
  }
  const value = valueAt(written, issue.path);
  const allowed = allowedBy(issue);
  // The file does not set the option: its default contradicts another option.
  if (value === undefined && issue.code === 'custom') return [`${path}: ${allowed}`];
  if (value === undefined) return [`${path}: is missing: ${allowed}`];
  const form =
    path.endsWith('Ms') && typeof value === 'string' ? ' (in milliseconds, or such as 500ms, 30s, 24h)' : '';
  return [`${path}: ${shown(path, value, issue)} is not allowed: ${allowed}${form}`];
}

/**
 * The options that a program passes to a function, with their defaults. The schema must take the type of `value`.
 *
 * @throws {TypeError} that names the function and each mistake
 */
export function parsed<Schema extends z.ZodType>(
  schema: Schema,
  value: z.input<Schema>,
  name: string,
): z.output<Schema> {
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  const mistakes = result.error.issues.flatMap((issue) => explain(issue, value, () => undefined));
  throw new TypeError(mistakes.map((mistake) => `${name}: ${mistake}`).join('\n'));
}

/** The path of an option as messages show it: `operations[0].match.path`. */
export const pathText = (path: readonly PropertyKey[]): string =>
  path
    .map((part) => (typeof part === 'number' ? `[${part}]` : `.${String(part)}`))
    .join('')
    .slice(1);

/** A hint at the option that is most likely meant by one that does not exist. Empty if none is similar. */
function hintFor(name: string, path: readonly PropertyKey[]): string {
  const most = Math.ceil(name.length / 3);
  const [similar] = optionsAt(path)
    .map((option) => ({ option, edits: editsBetween(name.toLowerCase(), option.toLowerCase()) }))
    // The same name may be an option of another kind of store.
    .filter(({ option, edits }) => option !== name && edits <= most)
    .sort((a, b) => a.edits - b.edits);
  return similar ? `; is it ${similar.option}?` : '';
}

/** How many characters must be added or removed. */
const editsBetween = (a: string, b: string): number => diff(a, b).filter(([edit]) => edit !== 0).length;

function allowedBy(issue: $ZodIssue): string {
  if (issue.code !== 'invalid_union' || issue.errors.length === 0) return issue.message;
  return issue.errors
    .flat()
    .map(({ message }) => message)
    .join(', or ');
}

function valueAt(written: unknown, path: readonly PropertyKey[]): unknown {
  return path.reduce<unknown>(
    (value, part) => (value as Record<PropertyKey, unknown> | undefined)?.[part],
    written,
  );
}

const MAY_BE_SECRET =
  /encryption|token|pepper|replacewith|secret|password|url|nodes|cluster|sentinels|endpoint|\.headers\./i;

/**
 * The value as it was written, unless it may be a secret: its path suggests one, or a text was written where a section
 * belongs.
 */
function shown(path: string, value: unknown, issue: $ZodIssue): string {
  const misplaced = issue.code === 'invalid_type' && ['object', 'array', 'record'].includes(issue.expected);
  if (MAY_BE_SECRET.test(path) || misplaced || typeof value === 'object') return 'the value';
  return JSON.stringify(typeof value === 'string' ? withoutSecrets(value) : value);
}

/** A text without the password of an address, and without the values of a query, except for placeholders such as `{key}`. */
export function withoutSecrets(text: string): string {
  const shown = text.replace(/([?&][^=&#]*=)(?!\{)[^&#]*/g, '$1masked');
  if (!shown.includes('@') || !URL.canParse(shown)) return shown;
  const url = new URL(shown);
  if (url.password === '') return shown;
  url.password = 'masked';
  return url.href;
}
