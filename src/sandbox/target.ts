import type { IncomingMessage } from 'node:http';

/** The path as it stands on the wire, undecoded and without the query. */
export function pathOf({ url = '' }: IncomingMessage): string {
  const query = url.indexOf('?');
  return query < 0 ? url : url.slice(0, query);
}

export function queryOf({ url = '' }: IncomingMessage): URLSearchParams {
  const query = url.indexOf('?');
  return new URLSearchParams(query < 0 ? '' : url.slice(query + 1));
}

/** A whole number from the query, or the default where it is missing, malformed or out of range. */
export function numberFrom(
  query: URLSearchParams,
  name: string,
  { fallback, max }: { fallback: number; max: number },
): number {
  const value = query.get(name) ?? '';
  return /^\d{1,9}$/.test(value) && Number(value) <= max ? Number(value) : fallback;
}
