import { valuesOf } from '../requests/fields.ts';
import type { AuthOptions } from './auth-options.ts';

/** The credentials in a request's headers. `reason` goes to the merchant and quotes nothing that they sent. */
export type Bearer = { kind: 'secret'; secret: string } | { kind: 'refused'; reason: string };

/** Longest accepted secret key, in characters. */
const MAX_SECRET_CHARS = 512;

/** The scheme, some spaces and the secret key. A longer value is refused without being parsed. */
const MAX_VALUE_CHARS = MAX_SECRET_CHARS + 64;

const SCHEME = /^bearer +/i;

/** The syntax of a bearer token: `b64token` in RFC 6750 §2.1. */
const B64TOKEN = /^[A-Za-z0-9._~+/-]+=*$/;

/**
 * Reads the secret key from the Authorization header.
 *
 * Parses the raw header lines, because Node's `headers` object keeps only the first of two Authorization lines and the
 * backend may use the other. A repeated header is refused even if both lines are equal.
 *
 * @param rawHeaders alternating names and values
 */
export function readBearer(rawHeaders: readonly string[]): Bearer {
  const [value, another] = valuesOf(rawHeaders, 'authorization');
  if (value === undefined) return refused('The Authorization header is missing.');
  if (another !== undefined) return refused('The Authorization header was sent more than once.');
  const scheme = value.length <= MAX_VALUE_CHARS && SCHEME.exec(value);
  const secret = scheme ? value.slice(scheme[0].length) : '';
  if (!isSecret(secret)) return refused('The Authorization header must be: Bearer <SECRET_KEY>.');
  return { kind: 'secret', secret };
}

/** Whether a text is a valid bearer token of at most 512 characters. */
export function isSecret(text: string): boolean {
  return text.length <= MAX_SECRET_CHARS && B64TOKEN.test(text);
}

function refused(reason: string): Bearer {
  return { kind: 'refused', reason };
}

/**
 * Maps the merchant's Authorization value to the one that the backend gets, if it gets one. The default keeps the value, because the
 * backend identifies the merchant by it.
 */
export function forwardAuthorization(
  options: Pick<AuthOptions, 'forward' | 'replaceWith'>,
): (value: string) => string | undefined {
  const { forward, replaceWith } = options;
  if (forward === 'keep') return (value) => value;
  return () => (forward === 'replace' ? replaceWith : undefined);
}

/**
 * The `WWW-Authenticate` header of RFC 6750 §3, in the form of a problem's `headers`.
 *
 * @param attributes such as `{ error: 'invalid_token' }`. A request without credentials gets none (§3.1)
 */
export function challenge(realm: string, attributes: Record<string, string> = {}): Record<string, string> {
  const pairs = Object.entries({ realm, ...attributes }).map(([name, value]) => `${name}=${quoted(value)}`);
  return { 'WWW-Authenticate': `Bearer ${pairs.join(', ')}` };
}

function quoted(value: string): string {
  return `"${value.replace(/["\\]/g, '\\$&')}"`;
}
