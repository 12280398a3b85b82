import { match as compile, parse, type Token } from 'path-to-regexp';
import * as z from 'zod';

const method = z.string().regex(/^[A-Z]+$/, 'must be a method in capitals');

/** A path without a query, or a pattern as in Express: /v1/payments/:id/refund. */
const pathPattern = z
  .string()
  .regex(/^\/[\x21-\x7e]*$/, 'must start with / and consist of printable ASCII characters without spaces')
  .superRefine((path, context) => {
    const mistake = mistakeInPattern(path);
    // No later check can read such a pattern.
    if (mistake !== undefined) context.addIssue({ code: 'custom', message: mistake, continue: false });
  });

/** Requests that need no secret key: a member of `auth.public`. */
export const publicPathOptions = z.strictObject({
  /** One HTTP method or several, in capitals. GET includes WebSocket handshakes, and not HEAD. */
  method: z.union([method, z.array(method).min(1)]),
  /** In its exact spelling, as in `match.path` of an operation. */
  path: pathPattern,
});

export type PublicPathOptions = z.output<typeof publicPathOptions>;

/** Which requests belong to an operation: the member `match` of an operation in the configuration. */
export const matchOptions = z
  .strictObject({
    /** One HTTP method or several, in capitals. */
    method: z.union([method, z.array(method).min(1)]),
    path: pathPattern,
    /** Members of a JSON body, a form body or the query, with the value that each must have: { action: withdraw }. */
    where: z
      .record(z.string().min(1), z.string())
      .refine((object) => Object.keys(object).length > 0, 'must name at least one member')
      .optional(),
  })
  .transform(({ method: methods, path, where = {} }) => ({ methods: [methods].flat(), path, where }));

export type MatchOptions = z.output<typeof matchOptions>;

/** The path that a declaration means, without its backslash escapes, unless the declaration is a pattern. */
export function literalOf(path: string): string | undefined {
  const { tokens } = parse(path);
  return tokens.every((token) => token.type === 'text')
    ? tokens.map(({ value }) => value).join('')
    : undefined;
}

/** Finds out whether a path matches a pattern in its exact spelling. */
export const matcherOf = (pattern: string) =>
  compile(pattern, { decode: false, sensitive: true, trailing: false });

/** Whether a pattern matches every path that another declaration means. Only for declarations without parameters; else false. */
export function matchesPath(pattern: string, path: string): boolean {
  const literal = literalOf(path);
  return literal !== undefined && matcherOf(pattern)(literal) !== false;
}

/** Two lists of operations with the same text give the same requests the same names, and protect the same requests. */
export function identificationOf(
  operations: readonly {
    name: string;
    match: MatchOptions;
    idempotency: { key: 'none' | 'optional' | 'required' };
  }[],
): string {
  return JSON.stringify(
    operations.map(({ name, match: { methods, path, where }, idempotency: { key } }) => [
      ...[name, methods, path, Object.entries(where)],
      key === 'none',
    ]),
  );
}

/** Why a path is not a valid pattern, or could never match as intended. */
function mistakeInPattern(path: string): string | undefined {
  let tokens: Token[];
  try {
    ({ tokens } = parse(path));
  } catch (error) {
    return `is not a valid path pattern of Express: ${(error as Error).message.split('; visit ')[0]}`;
  }
  const group = tokens.find((token) => token.type === 'group' && !hasParameter(token.tokens));
  if (group) return 'has braces without a parameter: write :id for a part that varies';
  return undefined;
}

const hasParameter = (tokens: readonly Token[]): boolean =>
  tokens.some((token) => token.type !== 'text' && (token.type !== 'group' || hasParameter(token.tokens)));
