/** Values that must not be mixed up carry a brand: the compiler refuses one where another is expected. */
type Brand<T, Name extends string> = T & { readonly __brand: Name };

/** {@link RECORD_ID_DIGITS} hexadecimal digits: the start of a SHA-256. The store holds one record under it. */
export type RecordId = Brand<string, 'RecordId'>;

/** 192 bits: nobody can find two keys with the same id, and Redis and SQLite hold each id several times. */
export const RECORD_ID_DIGITS = 48;

/** SHA-256 (32 bytes) over method, request target and raw body. Tells a retry from another request under the same key. */
export type Fingerprint = Brand<Buffer, 'Fingerprint'>;

/** 16 random bytes that name one execution. Every write after the start carries them. */
export type Token = Brand<Buffer, 'Token'>;
