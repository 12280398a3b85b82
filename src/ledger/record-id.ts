import type { Scope } from '../lib/brands.ts';
import { digest } from '../lib/digest.ts';

/** The merchant code and never the secret key: a rotated key must still find its old payouts. */
export function scopeOf(merchantCode: string, idempotencyKey: string): Scope {
  return digest([merchantCode, idempotencyKey]) as Scope;
}
