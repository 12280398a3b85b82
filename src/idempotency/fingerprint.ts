import { createHash, randomBytes } from 'node:crypto';
import type { Fingerprint, Scope, Token } from '../kernel/brands.ts';

/** SHA-256 over parts, each with its length before it, so that no two lists of parts run together. */
function digest(parts: readonly (string | Buffer)[]): Buffer {
  const hash = createHash('sha256');
  for (const part of parts) {
    const length = Buffer.alloc(4);
    length.writeUInt32BE(Buffer.byteLength(part));
    hash.update(length).update(part);
  }
  return hash.digest();
}

/** The merchant code and never the secret key: a rotated key must still find its old payouts. */
export function scopeOf(merchantCode: string, idempotencyKey: string): Scope {
  return digest([merchantCode, idempotencyKey]).toString('hex') as Scope;
}

/** `target` is the request target as received, query included. */
export function fingerprintOf(method: string, target: string, body: Buffer): Fingerprint {
  return digest([method, target, body]) as Fingerprint;
}

export function newToken(): Token {
  return randomBytes(16) as Token;
}
