import { randomBytes } from 'node:crypto';
import type { Token } from './brands.ts';

const TOKEN_BYTES = 16;
/** One call for the random bytes of many tokens is cheaper than one call each. */
const POOLED_TOKENS = 256;
let pool = Buffer.alloc(0);

export function newToken(): Token {
  if (pool.length === 0) pool = randomBytes(TOKEN_BYTES * POOLED_TOKENS);
  const token = pool.subarray(0, TOKEN_BYTES);
  pool = pool.subarray(TOKEN_BYTES);
  return token as Token;
}
