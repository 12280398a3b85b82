import type { IncomingMessage } from 'node:http';
import { keyOf } from './notes.ts';
import { pathOf } from './target.ts';

/**
 * Beyond so many different paths or keys the oldest are forgotten, so that a long run cannot eat up the
 * memory.
 */
const MAX_NAMES = 100_000;

export interface UpgradeSeen {
  readonly url: string;
  readonly rawHeaders: readonly (readonly [string, string])[];
}

/**
 * What arrived, whether or not it was executed: proof that nothing was sent, where nothing is counted. A
 * request counts as soon as its headers are in; witness requests do not count. In memory: a restart begins at
 * nought.
 */
export class RequestLog {
  lastUpgrade: UpgradeSeen | undefined;
  #total = 0;
  readonly #byPath = new Map<string, number>();
  readonly #byKey = new Map<string, number>();

  record(request: IncomingMessage): void {
    this.#total += 1;
    increment(this.#byPath, `${request.method} ${pathOf(request)}`);
    const key = keyOf(request.headers);
    if (key !== undefined) increment(this.#byKey, key);
  }

  recordUpgrade(request: IncomingMessage): void {
    this.record(request);
    this.lastUpgrade = { url: request.url ?? '', rawHeaders: headerPairs(request.rawHeaders) };
  }

  total(): number {
    return this.#total;
  }

  /** `path` with its method, as in `POST /v1/index.php`. */
  ofPath(path: string): number {
    return this.#byPath.get(path) ?? 0;
  }

  ofKey(key: string): number {
    return this.#byKey.get(key) ?? 0;
  }

  summary(): { total: number; byPath: Record<string, number>; byKey: Record<string, number> } {
    return {
      total: this.#total,
      byPath: Object.fromEntries(this.#byPath),
      byKey: Object.fromEntries(this.#byKey),
    };
  }
}

/** Node's flat list of names and values as pairs, in their order and case on the wire. */
export function headerPairs(flat: readonly string[]): [string, string][] {
  return Array.from({ length: flat.length / 2 }, (_, at) => [flat[2 * at] ?? '', flat[2 * at + 1] ?? '']);
}

function increment(counts: Map<string, number>, name: string): void {
  const [oldest] = counts.size >= MAX_NAMES && !counts.has(name) ? counts.keys() : [];
  if (oldest !== undefined) counts.delete(oldest);
  counts.set(name, (counts.get(name) ?? 0) + 1);
}
