import { randomBytes } from 'node:crypto';
import type { Token } from './brands.ts';

/** The source of random bytes and numbers for what decides about a key. */
export interface Random {
  /** 16 bytes that cannot be guessed. No two are equal. */
  token(): Token;
  /** A number from 0 to below 1. Need not be hard to guess. */
  fraction(): number;
}

const TOKEN_BYTES = 16;
/** One call for the random bytes of many tokens is cheaper than one call each. */
const POOLED_TOKENS = 256;
let pool = Buffer.alloc(0);
let used = 0;

function newToken(): Token {
  if (used === pool.length) {
    pool = randomBytes(TOKEN_BYTES * POOLED_TOKENS);
    used = 0;
  }
  used += TOKEN_BYTES;
  return pool.subarray(used - TOKEN_BYTES, used) as Token;
}

export const systemRandom: Random = { token: newToken, fraction: () => Math.random() };
