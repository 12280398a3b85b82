import { parse, type Token } from 'path-to-regexp';
import { z } from 'zod';

const method = z.string().regex(/^[A-Z]+$/, 'must be a method in capitals');

/** The value of `where`, and of its older name `body`. */
const members = z
  .record(z.string().min(1), z.string())
  .refine((object) => Object.keys(object).length > 0, 'must name at least one member');

/** Which requests belong to an operation: the member `match` of an operation in the configuration. */
export const matchOptions = z
  .strictObject({
    /** One HTTP method or several, in capitals. */
    method: z.union([method, z.array(method).min(1)]),
    /** A path without a query, or a pattern as in Express: /v1/payments/:id/refund. */
    path: z
      .string()
      .regex(/^\/[\x21-\x7e]*$/, 'must start with / and consist of printable ASCII characters without spaces')
      .superRefine((path, context) => {
        const mistake = mistakeInPattern(path);
        if (mistake !== undefined) context.addIssue({ code: 'custom', message: mistake });
      }),
    /** Members of a JSON body, a form body or the query, with the value that each must have: { action: withdraw }. */
    where: members.optional(),
    /** The older name of `where`, still accepted. */
    body: members.optional(),
  })
  .superRefine(({ where, body }, context) => {
    if (where && body)
      context.addIssue({ code: 'custom', path: ['body'], message: 'is the older name of where: use where' });
  })
  .transform(({ method: methods, path, where, body }) => ({
    methods: [methods].flat(),
    path,
    where: where ?? body ?? {},
    usesOldName: body !== undefined,
  }));

export type MatchOptions = z.output<typeof matchOptions>;

/** Why a path is not a valid pattern, or could never match as intended; undefined: it is valid. */
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
