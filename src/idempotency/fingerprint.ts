import { hash, randomBytes } from 'node:crypto';
import type { Fingerprint, Scope, Token } from '../kernel/brands.ts';

/** SHA-256 over parts, each with its length before it, so that no two lists of parts run together. */
function digest(parts: readonly (string | Buffer)[]): Buffer {
  const bytes = parts.flatMap((part) => {
    const length = Buffer.allocUnsafe(4);
    length.writeUInt32BE(Buffer.byteLength(part));
    return [length, typeof part === 'string' ? Buffer.from(part) : part];
  });
  return hash('sha256', Buffer.concat(bytes), 'buffer');
}

/** The merchant code and never the secret key: a rotated key must still find its old payouts. */
export function scopeOf(merchantCode: string, idempotencyKey: string): Scope {
  return digest([merchantCode, idempotencyKey]).toString('hex') as Scope;
}

/** `target` is the request target as received, query included. */
export function fingerprintOf(method: string, target: string, body: Buffer): Fingerprint {
  return digest([method, target, body]) as Fingerprint;
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
