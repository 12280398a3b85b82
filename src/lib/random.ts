import { randomBytes } from 'node:crypto';
import type { Token } from './brands.ts';

const TOKEN_BYTES = 16;
/** One call for the random bytes of many tokens is cheaper than one call each. */
const POOLED_TOKENS = 256;
let pool = Buffer.alloc(0);
let used = 0;

export function newToken(): Token {
  if (used === pool.length) {
    pool = randomBytes(TOKEN_BYTES * POOLED_TOKENS);
    used = 0;
  }
  used += TOKEN_BYTES;
  return pool.subarray(used - TOKEN_BYTES, used) as Token;
}
