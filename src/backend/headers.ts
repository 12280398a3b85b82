import type { Client } from '../lib/context.ts';
import type { TraceContext } from '../lib/trace.ts';
import { HOPS, hasField, valuesOf } from '../requests/fields.ts';

/** Header fields, names and values in turn, as they were on the wire. */
export type RawHeaders = readonly string[];

/** Hop-by-hop fields: those of RFC 9110 §7.6.1, and nonstandard ones of proxies. */
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
  // Each layer writes this field for the next one, and a merchant never gets it.
  HOPS,
]);

/** `Connection` cannot name these as hop-by-hop: a client could otherwise hide them from the backend. */
const ALWAYS_END_TO_END = /^(?:authorization|content-.*|cookie|x-forwarded-.*)$/;

const NONE: ReadonlySet<string> = new Set();

/**
 * The fields, in lower case, that the `Connection` field of this message names as hop-by-hop.
 *
 * @param needed further fields that `Connection` cannot name
 */
function nominatedIn(headers: RawHeaders, needed: readonly string[] = []): ReadonlySet<string> {
  const lines = valuesOf(headers, 'connection');
  // The usual case, which names no field.
  if (lines.length === 0 || (lines.length === 1 && /^(?:keep-alive|close)$/i.test(lines[0] as string)))
    return NONE;
  const names = lines.flatMap((value) => value.split(',')).map((name) => name.trim().toLowerCase());
  return new Set(names.filter((name) => !ALWAYS_END_TO_END.test(name) && !needed.includes(name)));
}

/** What the gateway changes in the merchant's fields. */
export interface Forwarding {
  requestId: string;
  /** Empty if the merchant is not known. Then no X-Merchant-Code is sent. */
  merchantCode: string;
  client: Client;
  /** Maps the merchant's Authorization value to the one that the backend gets, if it gets one. */
  authorization: (value: string) => string | undefined;
  /** Headers that may carry an idempotency key, in lower case. A backend that never gets the key cannot recognise a retry. */
  keyHeaders: readonly string[];
  /** Lower-case names that are kept although they contain an underscore. */
  keepUnderscore: readonly string[];
  /** The merchant's connection to the gateway uses TLS. */
  secure?: boolean;
  /** Asks for a response without content coding: it may be stored, and then every later client must be able to read it. */
  unencoded?: boolean;
  /** The value of the field {@link HOPS}. Default: it is not sent. */
  hops?: string | undefined;
  /** Replaces the trace context that came, which is otherwise passed on. */
  traceContext?: TraceContext | undefined;
}

/** Fields that the gateway, or its HTTP client, sets itself. */
const SET_BY_GATEWAY = new Set([
  'x-merchant-code',
  'x-request-id',
  'x-forwarded-for',
  'x-real-ip',
  // The client is found by X-Forwarded-For. A proxy that sets only that field leaves this one as the client sent it.
  'forwarded',
  'host',
  'content-length',
  'expect',
]);

/** Fields of proxies. Only a trusted proxy is believed: anyone else could pose as another client. */
const OF_PROXIES = /^x-forwarded-/;

/**
 * Orders to an Envoy, such as that of Istio, or to a Linkerd: to send a request again, to another service, or to answer 204 if the
 * backend takes too long.
 */
const [TO_ENVOY, TO_LINKERD] = ['x-envoy-', 'l5d-'] as const;

/** Fields that the gateway sets itself only for some requests, or under some options. */
const SOMETIMES_SET = new Set(['authorization', 'accept-encoding', 'traceparent', 'tracestate']);

/** Whether the backend may get this field of a merchant otherwise than it was sent, or not at all. `name`: in lower case. */
export const isOfGateway = (name: string): boolean =>
  SET_BY_GATEWAY.has(name) ||
  HOP_BY_HOP.has(name) ||
  OF_PROXIES.test(name) ||
  name.startsWith(TO_ENVOY) ||
  name.startsWith(TO_LINKERD) ||
  SOMETIMES_SET.has(name);

/** Other names are dropped: a CGI backend reads X_Merchant_Code and X.Merchant.Code as X-Merchant-Code, so a client could forge it. */
const UNAMBIGUOUS = /^[a-z0-9-]+$/;

/** The fields of a request for the backend: the merchant's unambiguous end-to-end fields, and those of the gateway. */
export function forwardedHeaders(headers: RawHeaders, forwarding: Forwarding): string[] {
  const { client, traceContext } = forwarding;
  const nominated = nominatedIn(headers, forwarding.keyHeaders);
  const out: string[] = [];
  for (let i = 0; i + 1 < headers.length; i += 2) {
    const raw = headers[i] as string;
    const name = raw.toLowerCase();
    if (SET_BY_GATEWAY.has(name) || HOP_BY_HOP.has(name) || nominated.has(name)) continue;
    // Not even from a trusted proxy: most pass on what a merchant sends.
    if (name.startsWith(TO_ENVOY) || name.startsWith(TO_LINKERD)) continue;
    if (!client.isPeerTrusted && OF_PROXIES.test(name)) continue;
    if (!UNAMBIGUOUS.test(name) && !forwarding.keepUnderscore.includes(name)) continue;
    if (forwarding.unencoded && name === 'accept-encoding') continue;
    if (traceContext && isReplaced(name, traceContext)) continue;
    const value = headers[i + 1] as string;
    const kept = name === 'authorization' ? forwarding.authorization(value) : value;
    if (kept !== undefined) out.push(raw, kept);
  }
  out.push('X-Forwarded-For', [client.address, ...client.proxies].join(', '));
  // A trusted proxy's X-Forwarded-Proto and X-Forwarded-Host describe the client's own request, so they are kept.
  const isSet = (name: string) => client.isPeerTrusted && hasField(headers, name);
  if (!isSet('x-forwarded-proto')) out.push('X-Forwarded-Proto', forwarding.secure ? 'https' : 'http');
  const [host] = valuesOf(headers, 'host');
  // An HTTP/1.0 request may have no Host.
  if (host !== undefined && !isSet('x-forwarded-host')) out.push('X-Forwarded-Host', host);
  out.push('X-Real-IP', client.address);
  out.push('X-Request-Id', forwarding.requestId);
  if (forwarding.merchantCode !== '') out.push('X-Merchant-Code', forwarding.merchantCode);
  if (forwarding.unencoded) out.push('Accept-Encoding', 'identity');
  if (traceContext) out.push('traceparent', traceContext.traceparent);
  if (forwarding.hops !== undefined) out.push(HOPS, forwarding.hops);
  return out;
}

const isReplaced = (name: string, { keepState }: TraceContext): boolean =>
  name === 'traceparent' || (name === 'tracestate' && !keepState);

/**
 * An old backend may leave the body of a request with another method unread, and then read it as the next request: past the gateway, in
 * anybody's name. So such a request must be the last one of its connection, and say so.
 */
export const METHODS_WITH_BODY: readonly string[] = ['POST', 'PUT', 'PATCH'];

/** The fields of a response for the merchant: without the hop-by-hop fields, in their order and case. */
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

/**
 * Whether a cache has answered, as some do whatever a request says. Age is then above 0 (RFC 9111 §5.1). Some caches send `Age: 0` with
 * what they have just got from the backend.
 */
export const isFromCache = (headers: RawHeaders): boolean =>
  valuesOf(headers, 'age').some((age) => age.trim() !== '0');
