import * as z from 'zod';

/** A whole number; of options that end in Ms, milliseconds. */
export const wholeNumber = (min: number, max: number) => z.number().int().min(min).max(max);

/** The name of a header field, in lower case. */
export const headerName = z.string().regex(/^[a-z0-9-]+$/, 'must be a header name in lower case');

/** The value of a header field. */
export const headerValue = z
  .string()
  .regex(/^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/, 'must be a header value');

/** Whether a text is an http or https URL without query, fragment and credentials. */
export function isHttpAddress(text: string): boolean {
  if (!URL.canParse(text)) return false;
  const { protocol, search, hash, username, password } = new URL(text);
  return /^https?:$/.test(protocol) && (search + hash + username + password).length === 0;
}
