import type { Resolution, ResolutionNote } from '../store/doubts.ts';
import type { ResolveRequest } from './record-view.ts';

const MAX_BY = 100;
const MAX_REASON = 500;
/** The limit for all header fields together. Clients refuse more, Node among them, and could never read the result. */
const MAX_HEADER_CHARS = 8192;
const FIELD_NAME = /^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}$/;
const FIELD_VALUE = /^[\x20-\x7e\x80-\xff\t]{0,8000}$/;
/** These fields describe a connection, not a response: the gateway sets them for each answer. */
const NOT_STORED =
  /^(?:connection|keep-alive|proxy-.*|te|trailer|transfer-encoding|upgrade|content-length)$/i;
/** Control characters could forge log lines or control a terminal. */
const CONTROL = /\p{Cc}|\p{Cf}|\p{Zl}|\p{Zp}/u;

/** What is wrong with the request, in one sentence. */
export function checkResolution(request: ResolveRequest, maxStoredBytes: number): string | undefined {
  const { as, status, headers, body } = request;
  const mistake = checkNote(request);
  if (mistake) return mistake;
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

/** What is wrong with a note, in one sentence. */
export function checkNote({ by, reason }: ResolutionNote): string | undefined {
  if (!isLine(by, MAX_BY)) return `by must say who does it, in one line of at most ${MAX_BY} characters.`;
  if (isLine(reason, MAX_REASON)) return undefined;
  return `reason must say why, in one line of at most ${MAX_REASON} characters.`;
}

function checkHeaders(headers: readonly string[]): string | undefined {
  const chars = headers.reduce((sum, part) => sum + part.length + 2, 0);
  if (chars > MAX_HEADER_CHARS)
    return `The header fields are longer than ${MAX_HEADER_CHARS} characters together.`;
  for (let i = 0; i < headers.length; i += 2) {
    const [name = '', value] = headers.slice(i, i + 2);
    if (!FIELD_NAME.test(name) || value === undefined || !FIELD_VALUE.test(value))
      return `Header field ${i / 2 + 1} is not a valid header field.`;
    if (NOT_STORED.test(name)) return `The gateway sets the header field ${name} itself.`;
  }
  return undefined;
}

const isLine = (text: string, max: number): boolean =>
  text.trim() !== '' && text.length <= max && !CONTROL.test(text);

/** The request must have passed {@link checkResolution}. */
export function resolutionOf({ as, status, headers = [], body }: ResolveRequest): Resolution {
  if (as === 'released') return { as };
  // The operator knows that the backend executed the request, but not the status of its response.
  if (status === undefined) return { as, completion: { kind: 'tombstone', status: 0 } };
  return { as, completion: { kind: 'response', response: { status, headers, body: bytesOf(body) } } };
}

const bytesOf = (body: string | undefined): Buffer => Buffer.from(body ?? '', 'base64');
