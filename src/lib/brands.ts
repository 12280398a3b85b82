/** Values that must not be mixed up carry a brand: the compiler refuses one where another is expected. */
type Brand<T, Name extends string> = T & { readonly __brand: Name };

/** SHA-256 (hex, 64 characters) over layer, merchant code and idempotency key. The store holds one record under it. */
export type RecordId = Brand<string, 'RecordId'>;

/** SHA-256 (32 bytes) over method, request target and raw body. Tells a retry from another request under the same key. */
export type Fingerprint = Brand<Buffer, 'Fingerprint'>;

/** 16 random bytes that name one execution. Every write after the start carries them. */
export type Token = Brand<Buffer, 'Token'>;
