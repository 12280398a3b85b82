/** Values that must not be mixed up carry a brand: the compiler refuses one where another is expected. */
type Brand<T, Name extends string> = T & { readonly __brand: Name };

/** The start of a SHA-256 over layer, merchant code and idempotency key, in hexadecimal digits. The store holds one record under it. */
export type RecordId = Brand<string, 'RecordId'>;

/**
 * 192 bits are enough: no attacker can find two keys with the same id. With all 256 bits, every name and index of a store would be longer.
 * If the number changes, the store's format must change, too.
 */
export const RECORD_ID_DIGITS = 48;

/** SHA-256 (32 bytes) over method, request target and raw body. Tells a retry from another request under the same key. */
export type Fingerprint = Brand<Buffer, 'Fingerprint'>;

/** 16 random bytes that name one execution. Every write after the start carries them. */
export type Token = Brand<Buffer, 'Token'>;
