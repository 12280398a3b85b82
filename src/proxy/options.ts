import { z } from 'zod';

const ms = (min: number, max: number) => z.number().int().min(min).max(max);

/** Section `upstream`: the backend. */
export const upstreamOptions = z.strictObject({
  /** Base address: http or https, no path, no credentials. The only option without a default. */
  url: z
    .string()
    .refine(
      isOrigin,
      'must be an origin such as http://payments.internal:9000, without path, query or credentials',
    ),
  /** Time to connect, TLS included. Nothing has been sent when it runs out. */
  connectTimeoutMs: ms(1, 120_000).default(2000),
  /** Time from sending to the complete answer. When it runs out, the outcome is unknown. */
  responseTimeoutMs: ms(1, 3_600_000).default(30_000),
  /** Connections of one process to the backend; more requests than these queue. */
  maxConnections: z.number().int().min(1).max(10_000).default(64),
  /** An idle connection is closed after this. Keep it well below the backend's own: a connection that the backend closes at the moment of sending leaves a payout in doubt. */
  keepAliveMs: ms(1, 60_000).default(1000),
});

export type UpstreamOptions = z.infer<typeof upstreamOptions>;

function isOrigin(text: string): boolean {
  if (!URL.canParse(text)) return false;
  const { protocol, pathname, search, hash, username, password } = new URL(text);
  return /^https?:$/.test(protocol) && pathname === '/' && (search + hash + username + password).length === 0;
}

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

/** Section `headers`. */
export const headerOptions = z.strictObject({
  /** Header names with an underscore are dropped, since CGI cannot tell them from those with a dash; these are kept. */
  keepUnderscore: z
    .array(z.string().regex(/^[a-z0-9_-]+$/, 'must be a header name in lower case'))
    .default([]),
});
