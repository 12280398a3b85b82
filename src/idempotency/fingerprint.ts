import { hash, randomBytes } from 'node:crypto';
import type { Fingerprint, Scope, Token } from '../kernel/brands.ts';

/** In UTF-8 a character has at most three bytes for each of its UTF-16 code units. */
const MOST_BYTES = 3;

/** SHA-256 over texts and a body, each with its length before it, so that no two lists run together. In hex. */
function digest(texts: readonly string[], body?: Buffer): string {
  let most = body ? 4 + body.length : 0;
  for (const text of texts) most += 4 + MOST_BYTES * text.length;
  const bytes = Buffer.allocUnsafe(most);
  let at = 0;
  for (const text of texts) {
    const length = bytes.write(text, at + 4);
    bytes.writeUInt32BE(length, at);
    at += 4 + length;
  }
  if (body) {
    at = bytes.writeUInt32BE(body.length, at);
    at += body.copy(bytes, at);
  }
  return hash('sha256', bytes.subarray(0, at), 'hex');
}

/** The merchant code and never the secret key: a rotated key must still find its old payouts. */
export function scopeOf(merchantCode: string, idempotencyKey: string): Scope {
  return digest([merchantCode, idempotencyKey]) as Scope;
}

/** `target` is the request target as received, query included. */
export function fingerprintOf(method: string, target: string, body: Buffer): Fingerprint {
  // A hash that is asked for as a buffer costs four times as much.
  return Buffer.from(digest([method, target], body), 'hex') as Fingerprint;
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
