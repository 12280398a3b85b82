import { valuesOf } from '../kernel/fields.ts';

/** Header fields, names and values in turn, as they were on the wire. */
export type RawHeaders = readonly string[];

/** Hop-by-hop fields (RFC 9110 §7.6.1), with those that proxies have invented. */
const HOP_BY_HOP = new Set([
  ...[
    'connection',
    'close',
    'keep-alive',
    'proxy-authenticate',
    'proxy-authorization',
    'proxy-authentication-info',
  ],
  ...['proxy-connection', 'te', 'trailer', 'transfer-encoding', 'upgrade', 'http2-settings'],
]);

/** Fields that a client's `Connection:` must not be able to remove. */
const NOT_FOR_NOMINATION =
  /^(?:authorization|content-.*|cookie|x-forwarded-.*|x-service-idempotency|idempotency-key)$/;

const NOTHING: ReadonlySet<string> = new Set();

/** Fields that this message's `Connection` names as hop-by-hop, in lower case. */
function nominatedIn(headers: RawHeaders): ReadonlySet<string> {
  const lines = valuesOf(headers, 'connection');
  // Almost every client sends one of these two, which name no field.
  if (lines.length === 0 || (lines.length === 1 && /^(?:keep-alive|close)$/i.test(lines[0] as string)))
    return NOTHING;
  const names = lines.flatMap((value) => value.split(',')).map((name) => name.trim().toLowerCase());
  return new Set(names.filter((name) => !NOT_FOR_NOMINATION.test(name)));
}

/** Fields that the gateway adds to the merchant's. */
export interface Forwarding {
  requestId: string;
  merchantCode: string;
  /** Address of the merchant's connection. */
  clientAddress: string;
  /** Maps the Authorization value to the one that is sent; undefined: none is sent. */
  authorization: (value: string) => string | undefined;
  /** Lower-case names that are kept though they hold an underscore. */
  keepUnderscore: readonly string[];
  /** For a response that may be stored: no content coding is requested, so that every later client can read it. */
  unencoded?: boolean;
}

/** The gateway sets these itself; the client library sets Host and framing. */
const OURS = new Set([
  'x-merchant-code',
  'x-request-id',
  'x-forwarded-for',
  'host',
  'content-length',
  'expect',
]);

/** CGI makes X_Merchant_Code, X.Merchant.Code and X-Merchant-Code the same variable. */
const UNAMBIGUOUS = /^[a-z0-9-]+$/;

/** The request's fields for the backend: end-to-end and unambiguous ones, and the gateway's own. */
export function forwardedHeaders(headers: RawHeaders, forwarding: Forwarding): string[] {
  const nominated = nominatedIn(headers);
  const out: string[] = [];
  for (let i = 0; i + 1 < headers.length; i += 2) {
    const raw = headers[i] as string;
    const name = raw.toLowerCase();
    if (OURS.has(name) || HOP_BY_HOP.has(name) || nominated.has(name)) continue;
    if (!UNAMBIGUOUS.test(name) && !forwarding.keepUnderscore.includes(name)) continue;
    if (forwarding.unencoded && name === 'accept-encoding') continue;
    const value = headers[i + 1] as string;
    const kept = name === 'authorization' ? forwarding.authorization(value) : value;
    if (kept !== undefined) out.push(raw, kept);
  }
  const via = [...valuesOf(headers, 'x-forwarded-for'), forwarding.clientAddress];
  out.push('X-Forwarded-For', via.join(', '));
  // A balancer in front of the gateway knows these better.
  if (valuesOf(headers, 'x-forwarded-proto').length === 0) out.push('X-Forwarded-Proto', 'http');
  const [host] = valuesOf(headers, 'host');
  // HTTP/1.0 has requests without Host.
  if (host !== undefined && valuesOf(headers, 'x-forwarded-host').length === 0)
    out.push('X-Forwarded-Host', host);
  out.push('X-Request-Id', forwarding.requestId, 'X-Merchant-Code', forwarding.merchantCode);
  if (forwarding.unencoded) out.push('Accept-Encoding', 'identity');
  return out;
}

/** The response's fields for the merchant: all but the hop-by-hop ones, in their order and case. */
export function endToEndHeaders(headers: RawHeaders): string[] {
  const nominated = nominatedIn(headers);
  const out: string[] = [];
  for (let i = 0; i + 1 < headers.length; i += 2) {
    const raw = headers[i] as string;
    const name = raw.toLowerCase();
    if (!HOP_BY_HOP.has(name) && !nominated.has(name)) out.push(raw, headers[i + 1] as string);
  }
  return out;
}
