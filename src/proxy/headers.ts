/** Header fields, names and values in turn, as they stood on the wire. */
export type RawHeaders = readonly string[];

/** Fields that speak of one connection only (RFC 9110 §7.6.1), with those that proxies have made up. */
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

/** Fields that a client's `Connection:` must not be able to take away from the backend. */
const NOT_FOR_NOMINATION =
  /^(?:authorization|content-.*|cookie|x-forwarded-.*|x-service-idempotency|idempotency-key)$/;

/** All values of a field, one for each line. */
export function valuesOf(headers: RawHeaders, name: string): string[] {
  const values: string[] = [];
  for (let i = 0; i + 1 < headers.length; i += 2) {
    const raw = headers[i] as string;
    if (raw.length === name.length && raw.toLowerCase() === name) values.push(headers[i + 1] as string);
  }
  return values;
}

const NOTHING: ReadonlySet<string> = new Set();

/** Fields that this message's `Connection` names as its connection's own, in lower case. */
function nominatedIn(headers: RawHeaders): ReadonlySet<string> {
  const lines = valuesOf(headers, 'connection');
  // What almost everybody sends nominates nothing.
  if (lines.length === 0 || (lines.length === 1 && /^(?:keep-alive|close)$/i.test(lines[0] as string)))
    return NOTHING;
  const names = lines.flatMap((value) => value.split(',')).map((name) => name.trim().toLowerCase());
  return new Set(names.filter((name) => !NOT_FOR_NOMINATION.test(name)));
}

/** What goes to the backend beside the merchant's own fields. */
export interface Forwarding {
  requestId: string;
  merchantCode: string;
  /** Address of the merchant's connection. */
  clientAddress: string;
  /** What becomes of the Authorization value: itself, another, or undefined for none. */
  authorization: (value: string) => string | undefined;
  /** Lower-case names that are kept though they hold an underscore. */
  keepUnderscore: readonly string[];
  /** For an answer that is to be stored: it must be readable by anyone, so no encoding is asked for. */
  unencoded?: boolean;
}

/** Set by us, and never taken from outside as they are. Host and framing are the sender's business. */
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

/** The request's fields as the backend shall get them: end-to-end ones, unambiguous, with ours. */
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
  // A balancer before us knows these better than we do.
  if (valuesOf(headers, 'x-forwarded-proto').length === 0) out.push('X-Forwarded-Proto', 'http');
  if (valuesOf(headers, 'x-forwarded-host').length === 0) {
    out.push('X-Forwarded-Host', valuesOf(headers, 'host')[0] ?? '');
  }
  out.push('X-Request-Id', forwarding.requestId, 'X-Merchant-Code', forwarding.merchantCode);
  if (forwarding.unencoded) out.push('Accept-Encoding', 'identity');
  return out;
}

/** The response's fields as the merchant shall get them: all but those of the connection, in order and case. */
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
