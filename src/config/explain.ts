import type { $ZodIssue } from 'zod/v4/core';

/** Options of earlier versions: the last part of the old path → the new name. */
const RENAMED: Record<string, string> = {
  settleRetryMs: 'completeRetryMs',
  settleMs: 'completeMs',
  settled: 'completed',
  settledStatus: 'completedStatus',
};

/**
 * One line for each mistake of an issue: path, value, and what is allowed.
 *
 * @param written the file's content with its placeholders, so that no message shows a value from the environment
 */
export function explain(issue: $ZodIssue, written: unknown): string[] {
  const path = issue.path
    .map((part) => (typeof part === 'number' ? `[${part}]` : `.${String(part)}`))
    .join('')
    .slice(1);
  if (issue.code === 'unrecognized_keys') {
    return issue.keys.map((key) => {
      const renamed = Object.hasOwn(RENAMED, key) ? RENAMED[key] : undefined;
      const hint = renamed === undefined ? '' : `; it is now called ${renamed}`;
      return `${path ? `${path}.` : ''}${key}: is not an option${hint}`;
    });
  }
  const value = valueAt(written, issue.path);
  const allowed =
    value === 'lmdb' && path === 'store.kind'
      ? `${allowedBy(issue)} (the embedded store is now called sqlite)`
      : allowedBy(issue);
  // The file does not set the option: its default contradicts another option.
  if (value === undefined && issue.code === 'custom') return [`${path}: ${allowed}`];
  if (value === undefined) return [`${path}: is missing: ${allowed}`];
  return [`${path}: ${shown(path, value, issue)} is not allowed: ${allowed}`];
}

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

const MAY_BE_SECRET = /token|pepper|replacewith|secret|password|url|nodes|cluster|sentinels|lookup\.headers/i;

/**
 * The value as it was written, unless it may be a secret: its path suggests one, or a text was written where a section
 * belongs.
 */
function shown(path: string, value: unknown, issue: $ZodIssue): string {
  const misplaced = issue.code === 'invalid_type' && ['object', 'array', 'record'].includes(issue.expected);
  if (MAY_BE_SECRET.test(path) || misplaced || typeof value === 'object') return 'the value';
  return JSON.stringify(value);
}
