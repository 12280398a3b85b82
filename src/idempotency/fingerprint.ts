import { hash, randomBytes } from 'node:crypto';
import type { Fingerprint, Scope, Token } from '../kernel/brands.ts';

/** SHA-256 over parts, each with its length before it, so that no two lists of parts run together. */
function digest<E extends 'hex' | 'buffer'>(parts: readonly (string | Buffer)[], encoding: E) {
  const lengths = parts.map((part) => (typeof part === 'string' ? Buffer.byteLength(part) : part.length));
  const bytes = Buffer.allocUnsafe(lengths.reduce((sum, length) => sum + 4 + length, 0));
  let at = 0;
  for (const [i, part] of parts.entries()) {
    at = bytes.writeUInt32BE(lengths[i] as number, at);
    if (typeof part === 'string') at += bytes.write(part, at);
    else at += part.copy(bytes, at);
  }
  return hash('sha256', bytes, encoding);
}

/** The merchant code and never the secret key: a rotated key must still find its old payouts. */
export function scopeOf(merchantCode: string, idempotencyKey: string): Scope {
  return digest([merchantCode, idempotencyKey], 'hex') as string as Scope;
}

/** `target` is the request target as received, query included. */
export function fingerprintOf(method: string, target: string, body: Buffer): Fingerprint {
  return digest([method, target, body], 'buffer') as Buffer as Fingerprint;
}

const TOKEN_BYTES = 16;
/** Random bytes are cheaper by the thousand. */
const POOLED_TOKENS = 256;
let pool = Buffer.alloc(0);

export function newToken(): Token {
  if (pool.length === 0) pool = randomBytes(TOKEN_BYTES * POOLED_TOKENS);
  const token = Buffer.from(pool.subarray(0, TOKEN_BYTES));
  pool = pool.subarray(TOKEN_BYTES);
  return token as Token;
}
