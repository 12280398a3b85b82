import type { Resolution } from '../store.ts';

/** How an operator resolves a scope. Plain data. */
export interface ResolveRequest {
  scope: string;
  as: 'completed' | 'released';
  /** Who, and why: both are kept in the audit trail and logged. */
  by: string;
  reason: string;
  /** The response that retries get. Without one they get 409 `response_not_stored`. */
  status?: number | undefined;
  /** Names and values in turn. */
  headers?: string[] | undefined;
  /** Base64. */
  body?: string | undefined;
  /** Resolve only if the record still belongs to this execution. */
  execution?: string | undefined;
}

const MAX_BY = 100;
const MAX_REASON = 500;
const FIELD_NAME = /^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}$/;
const FIELD_VALUE = /^[\x20-\x7e\x80-\xff\t]{0,8000}$/;
/** These fields belong to a connection and not to a response: each answer gets its own. */
const NOT_STORED =
  /^(?:connection|keep-alive|proxy-.*|te|trailer|transfer-encoding|upgrade|content-length)$/i;
/** Characters that a log line or a terminal must not get. */
const CONTROL = /\p{Cc}|\p{Cf}|\p{Zl}|\p{Zp}/u;

/** What is wrong with the request, in one sentence. */
export function checkResolution(request: ResolveRequest, maxStoredBytes: number): string | undefined {
  const { by, reason, as, status, headers, body } = request;
  if (!isLine(by, MAX_BY)) return `by must say who resolves it, in one line of at most ${MAX_BY} characters.`;
  if (!isLine(reason, MAX_REASON))
    return `reason must say why, in one line of at most ${MAX_REASON} characters.`;
  const responds = [status, headers, body].some((part) => part !== undefined);
  if (as === 'released') return responds ? 'A released key has no response.' : undefined;
  if (!responds) return undefined;
  if (status === undefined) return 'A response needs its status.';
  if (!Number.isInteger(status) || status < 200 || status > 599)
    return 'A status is a number from 200 to 599.';
  if (bytesOf(body).length > maxStoredBytes)
    return `The body is larger than idempotency.maxStoredBytes (${maxStoredBytes}): resolve it without a response.`;
  return checkHeaders(headers ?? []);
}

function checkHeaders(headers: readonly string[]): string | undefined {
  for (let i = 0; i < headers.length; i += 2) {
    const [name = '', value] = headers.slice(i, i + 2);
    if (!FIELD_NAME.test(name) || value === undefined || !FIELD_VALUE.test(value))
      return `Header field ${i / 2 + 1} is no header field.`;
    if (NOT_STORED.test(name)) return `The header field ${name} is the gateway’s own to set.`;
  }
  return undefined;
}

/** The request must have passed {@link checkResolution}. */
export function resolutionOf({ as, status, headers = [], body }: ResolveRequest): Resolution {
  if (as === 'released') return { as };
  // The status that the backend answered with is unknown.
  if (status === undefined) return { as, completion: { kind: 'tombstone', status: 0 } };
  return { as, completion: { kind: 'response', response: { status, headers, body: bytesOf(body) } } };
}

const bytesOf = (body: string | undefined): Buffer => Buffer.from(body ?? '', 'base64');

const isLine = (text: string, max: number): boolean =>
  text.trim() !== '' && text.length <= max && !CONTROL.test(text);
