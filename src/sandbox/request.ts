import { createHash } from 'node:crypto';
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http';

/** The path as it was received: not decoded, and without the query. */
export function requestPath({ url = '' }: IncomingMessage): string {
  const query = url.indexOf('?');
  return query < 0 ? url : url.slice(0, query);
}

export function requestQuery({ url = '' }: IncomingMessage): URLSearchParams {
  const query = url.indexOf('?');
  return new URLSearchParams(query < 0 ? '' : url.slice(query + 1));
}

/** A whole number from the query, or the fallback if it is missing, malformed or above `max`. */
export function numberFrom(
  query: URLSearchParams,
  name: string,
  { fallback, max }: { fallback: number; max: number },
): number {
  const value = query.get(name) ?? '';
  return /^\d{1,9}$/.test(value) && Number(value) <= max ? Number(value) : fallback;
}

/** The idempotency key header as it was received, quotes included. */
export function keyOf(headers: IncomingHttpHeaders): string | undefined {
  return (headers['x-service-idempotency'] ?? headers['idempotency-key'])?.toString();
}

/** Node's flat list of names and values as pairs, in the order and case in which they were received. */
export function headerPairs(flat: readonly string[]): [string, string][] {
  return Array.from({ length: flat.length / 2 }, (_, at) => [flat[2 * at] ?? '', flat[2 * at + 1] ?? '']);
}

export const MAX_BODY_BYTES = 1_048_576;

/**
 * The whole body, or undefined if it is larger than the limit. Such a body is read completely and discarded: a reply
 * before that would reset the connection, and the client would not see the 413.
 */
export async function readBody(request: IncomingMessage): Promise<Buffer | undefined> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (bytes <= MAX_BODY_BYTES) chunks.push(chunk);
    else chunks.length = 0;
  }
  return bytes > MAX_BODY_BYTES ? undefined : Buffer.concat(chunks);
}

/** Length and SHA-256 of a body of any size. The body is not kept in memory. */
export async function digestBody(request: IncomingMessage): Promise<{ bytes: number; sha256: string }> {
  const hash = createHash('sha256');
  let bytes = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    hash.update(chunk);
  }
  return { bytes, sha256: hash.digest('hex') };
}

/** Paths or keys that are counted at most, to bound the memory of a long run. Each further one replaces the oldest. */
const MAX_COUNTED = 100_000;

/**
 * Counts the requests that were received, executed or not. A count of zero proves that the gateway sent nothing. A
 * request is counted when its headers have arrived; requests to `/_sandbox/` are not counted.
 */
export class SandboxRequests {
  #total = 0;
  readonly #byPath = new Map<string, number>();
  readonly #byKey = new Map<string, number>();

  add(request: IncomingMessage): void {
    this.#total += 1;
    increment(this.#byPath, `${request.method} ${requestPath(request)}`);
    const key = keyOf(request.headers);
    if (key !== undefined) increment(this.#byKey, key);
  }

  total = (): number => this.#total;

  /** `path` with its method, as in `POST /v1/index.php`. */
  ofPath = (path: string): number => this.#byPath.get(path) ?? 0;

  ofKey = (key: string): number => this.#byKey.get(key) ?? 0;

  readonly #deliveries = new Map<string, number>();

  /** Counts a request by its marker. */
  deliver = (marker: string): void => increment(this.#deliveries, marker);

  deliveries = (marker: string): number => this.#deliveries.get(marker) ?? 0;
}

function increment(counts: Map<string, number>, name: string): void {
  const [oldest] = counts.size >= MAX_COUNTED && !counts.has(name) ? counts.keys() : [];
  if (oldest !== undefined) counts.delete(oldest);
  counts.set(name, (counts.get(name) ?? 0) + 1);
}
