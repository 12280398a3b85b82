import * as z from 'zod';
import { isHttpAddress, wholeNumber } from '../requests/common-options.ts';

/** `upstream.tls`, and `store.tls` as a section: paths of PEM files. */
export const clientTlsOptions = z
  .strictObject({
    /** The certificate authorities that the server's certificate may come from, in place of the well-known ones. */
    ca: z.string().min(1).optional(),
    /** The gateway's own certificate for a server that asks for one, with its intermediates. */
    cert: z.string().min(1).optional(),
    /** The private key of `cert`. */
    key: z.string().min(1).optional(),
    /** The name that the certificate of each server must have. Default: its host. */
    serverName: z.string().min(1).optional(),
  })
  .refine(({ cert, key }) => (cert === undefined) === (key === undefined), 'needs cert and key together');

/** Section `upstream`: the backend. */
export const upstreamOptions = z
  .strictObject({
    /** Origin of the backend: http or https, without path and credentials. The only required option. */
    url: z
      .string()
      .refine(
        isOrigin,
        'must be an origin such as http://payments.internal:9000, with http or https and without path, query or credentials',
      ),
    /** For an https backend. */
    tls: clientTlsOptions.optional(),
    /** Time to connect, TLS included. Nothing has been sent when it runs out. Less than `lock.leaseMs`. */
    connectTimeoutMs: wholeNumber(1, 120_000).default(2000),
    /** Time from sending to the complete answer. When it runs out, the outcome is unknown. */
    responseTimeoutMs: wholeNumber(1, 3_600_000).default(30_000),
    /** Connections of one process to the backend. More requests than these wait in a queue. */
    maxConnections: wholeNumber(1, 10_000).default(64),
    /** Requests that may wait for a connection; one more is answered 503 overloaded. Nothing is stored or sent for it. */
    maxQueued: wholeNumber(0, 1_000_000).default(1000),
    /** How long a request may wait for a connection; then it is answered 503 overloaded. */
    queueTimeoutMs: wholeNumber(1, 600_000).default(2000),
    /** Passed-through requests and WebSockets of one process at once; one more is answered 503 overloaded, and nothing is sent. */
    maxStreams: wholeNumber(1, 100_000).default(256),
    /** An idle connection is closed after this. Keep it well below the backend's own: a connection that the backend closes at the moment of sending leaves a payout in doubt. */
    keepAliveMs: wholeNumber(1, 60_000).default(1000),
    /**
     * A response with neither a Content-Length nor chunks ends with its connection, and one that was cut looks the same.
     * untrusted: it is complete only if its body is one whole JSON object or array; otherwise the outcome is unknown.
     * trusted: DANGEROUS. A response that was cut when the backend died is stored as the result.
     */
    endOfConnection: z.enum(['untrusted', 'trusted']).default('untrusted'),
  })
  .refine(({ url, tls }) => tls === undefined || url.startsWith('https:'), {
    path: ['tls'],
    message: 'is only possible with an https url',
  });

export type UpstreamOptions = z.infer<typeof upstreamOptions>;

function isOrigin(text: string): boolean {
  return isHttpAddress(text) && new URL(text).pathname === '/';
}

/** Section `headers`. */
export const headerOptions = z.strictObject({
  /** Header names with an underscore are dropped, since CGI cannot tell them from those with a dash; these are kept. */
  keepUnderscore: z
    .array(z.string().regex(/^[a-z0-9_-]+$/, 'must be a header name in lower case'))
    .default([]),
});
