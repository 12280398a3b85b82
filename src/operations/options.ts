import { z } from 'zod';

/** Which requests an operation is. */
export const matchOptions = z.strictObject({
  method: z.string().regex(/^[A-Z]+$/, 'must be a method in capitals'),
  /** The exact path, without a query. */
  path: z.string().regex(/^\/[\x21-\x7e]*$/, 'must begin with / and hold printable ASCII without spaces'),
  /** One member of the JSON body and the value it must have, such as { action: withdraw }. */
  body: z
    .record(z.string().min(1), z.string())
    .refine((members) => Object.keys(members).length === 1, 'must name exactly one member')
    .optional(),
  /** What to do with a body on this route that is no unambiguous JSON object: refuse it, or (for routes that take uploads too) pass it on as nobody's operation. */
  unreadableBody: z.enum(['refuse', 'pass']).default('refuse'),
});

export type MatchOptions = z.infer<typeof matchOptions>;
