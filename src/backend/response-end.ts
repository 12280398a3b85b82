import { hasField, valuesOf } from '../requests/fields.ts';

/**
 * Whether the response itself shows where it ends: it has no body, or a length, or chunks. Otherwise it ends with the connection, and a
 * response that was cut looks the same.
 *
 * @param headers as received: names and values in turn
 */
export function hasOwnEnd(method: string, status: number, headers: readonly string[]): boolean {
  if (method === 'HEAD' || status === 204 || status === 304) return true;
  const codings = valuesOf(headers, 'transfer-encoding').join(',');
  // The merchant could not read another coding: this field describes one connection, and is not passed on.
  if (codings !== '') return /^[ \t]*chunked[ \t]*$/i.test(codings);
  return hasField(headers, 'content-length');
}

/**
 * Whether a body without an end of its own is whole: one JSON object or array, because a part of one is not valid JSON. (A number could
 * have had more digits.)
 */
export function isWholeJson(headers: readonly string[], body: Buffer): boolean {
  const [type = '', another] = valuesOf(headers, 'content-type');
  if (another !== undefined || !/^application\/(?:[^\s;]+\+)?json[ \t]*(?:;|$)/i.test(type)) return false;
  if (hasField(headers, 'content-encoding')) return false;
  try {
    const value: unknown = JSON.parse(body.toString());
    return typeof value === 'object' && value !== null;
  } catch {
    return false;
  }
}
