import type { Fingerprint } from '../../src/lib/brands.ts';

/** The idempotency keys of a world. */
export const KEYS = ['key-0', 'key-1'] as const;
export const keyNumber = (key: string): number => KEYS.indexOf(key as (typeof KEYS)[number]);
/** The fingerprints of a key's request, and of another one under the same key. */
export const FINGERPRINTS = [1, 2].map((byte) => Buffer.alloc(32, byte) as Fingerprint);
