import * as z from 'zod';

/** The largest body of a request. Keys with a larger response are resolved on the command line, or without a body. */
export const MAX_BODY_BYTES = 2_097_152;

/** What a request to resolve a key says of the key, in `/records` and in the console. */
export const resolutionFields = {
  as: z.enum(['completed', 'released']),
  reason: z.string(),
  /** The execution that was looked at. */
  execution: z.string().min(1).max(100),
  status: z.number().optional(),
  /** By name; parsed into names and values in turn. */
  headers: z
    .record(z.string(), z.union([z.string(), z.array(z.string())]))
    .transform((fields) =>
      Object.entries(fields).flatMap(([name, values]) => [values].flat().flatMap((value) => [name, value])),
    )
    .optional(),
  body: z.base64().optional(),
};

/** Names the member that is wrong, without any value of the request. */
export function mistakeIn({ issues }: z.ZodError): string {
  const [issue] = issues;
  const place = issue?.path.join('.') || 'the body';
  return `${place}: ${issue?.code === 'unrecognized_keys' ? 'has an unknown member' : (issue?.message ?? 'is wrong')}.`;
}
