/** Header fields, names and values in turn, as they stood on the wire. */
export type RawHeaders = readonly string[];

/** Fields that speak of one connection only (RFC 9110 §7.6.1), with those that proxies have made up. */
const HOP_BY_HOP = new Set([
  ...['connection', 'keep-alive', 'proxy-authenticate', 'proxy-authorization', 'proxy-authentication-info'],
  ...['proxy-connection', 'te', 'trailer', 'transfer-encoding', 'upgrade', 'http2-settings'],
]);

/** Fields that a client's `Connection:` must not be able to take away from the backend. */
const NOT_FOR_NOMINATION =
  /^(?:authorization|content-.*|cookie|x-forwarded-.*|x-service-idempotency|idempotency-key)$/;

/** Names and values as pairs; names in lower case for comparing, and as they stood. */
export function* fields(headers: RawHeaders): Generator<{ name: string; raw: string; value: string }> {
  for (let i = 0; i + 1 < headers.length; i += 2) {
    const raw = headers[i] as string;
    yield { name: raw.toLowerCase(), raw, value: headers[i + 1] as string };
  }
}

/** All values of a field, one for each line. */
export function valuesOf(headers: RawHeaders, name: string): string[] {
  return [...fields(headers)].filter((field) => field.name === name).map((field) => field.value);
}

/** Is this (lower-case) name a field of the connection, and not of the message? */
function hopByHop(headers: RawHeaders): (name: string) => boolean {
  const names = valuesOf(headers, 'connection').flatMap((value) => value.split(','));
  const nominated = new Set(names.map((name) => name.trim().toLowerCase()));
  return (name) => HOP_BY_HOP.has(name) || (nominated.has(name) && !NOT_FOR_NOMINATION.test(name));
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

/** The request's fields as the backend shall get them: end-to-end ones, unambiguous, with ours. */
export function forwardedHeaders(headers: RawHeaders, forwarding: Forwarding): string[] {
  const isHop = hopByHop(headers);
  const out: string[] = [];
  for (const { name, raw, value } of fields(headers)) {
    if (OURS.has(name) || isHop(name)) continue;
    // CGI makes X_Merchant_Code, X.Merchant.Code and X-Merchant-Code the same variable.
    if (!/^[a-z0-9-]+$/.test(name) && !forwarding.keepUnderscore.includes(name)) continue;
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
  return out;
}

/** The response's fields as the merchant shall get them: all but those of the connection, in order and case. */
export function endToEndHeaders(headers: RawHeaders): string[] {
  const isHop = hopByHop(headers);
  return [...fields(headers)].filter(({ name }) => !isHop(name)).flatMap(({ raw, value }) => [raw, value]);
}

/** The same for the executor: what is stored must be readable by anyone, so no encoding is asked for. */
export function withoutEncodings(headers: RawHeaders): string[] {
  const kept = [...fields(headers)].filter(({ name }) => name !== 'accept-encoding');
  return [...kept.flatMap(({ raw, value }) => [raw, value]), 'Accept-Encoding', 'identity'];
}
