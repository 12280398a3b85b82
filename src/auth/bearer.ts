/** What a request's head says of its credentials. `reason` is for the merchant to read, and holds nothing they sent. */
export type Bearer = { kind: 'secret'; secret: string } | { kind: 'refused'; reason: string };

/** Longest secret key, in characters. */
export const MAX_SECRET_CHARS = 512;

/** RFC 6750 §2.1 `b64token`: what can be sent as a bearer token at all. */
const B64TOKEN = /^[A-Za-z0-9._~+/-]+=*$/;

const SCHEME = /^bearer +/i;
/** The scheme, some spaces, the secret key. A longer value is not read. */
const MAX_VALUE_CHARS = MAX_SECRET_CHARS + 64;

/**
 * The bearer secret key of a request.
 *
 * Reads the header lines as they were on the wire: of two Authorization lines Node shows the first, and the backend may
 * read the other one. So a repeated header is refused, even if both are equal.
 *
 * @param rawHeaders names and values in turn
 */
export function readBearer(rawHeaders: readonly string[]): Bearer {
  const [value, another] = authorizationLines(rawHeaders);
  if (value === undefined) return refused('The Authorization header is missing.');
  if (another !== undefined) return refused('The Authorization header was sent more than once.');
  const scheme = value.length <= MAX_VALUE_CHARS && SCHEME.exec(value);
  const secret = scheme ? value.slice(scheme[0].length) : '';
  if (!isSecret(secret)) return refused('The Authorization header must be: Bearer <SECRET_KEY>.');
  return { kind: 'secret', secret };
}

/** Can this be sent as a bearer token, and is it short enough for us? */
export function isSecret(text: string): boolean {
  return text.length <= MAX_SECRET_CHARS && B64TOKEN.test(text);
}

function authorizationLines(rawHeaders: readonly string[]): string[] {
  const lines: string[] = [];
  for (let i = 0; i + 1 < rawHeaders.length; i += 2) {
    if (rawHeaders[i]?.toLowerCase() === 'authorization') lines.push(rawHeaders[i + 1] ?? '');
  }
  return lines;
}

function refused(reason: string): Bearer {
  return { kind: 'refused', reason };
}
