import { createHmac, type KeyObject } from 'node:crypto';

/** Precedes the digest in a key file, and names the function that made it. */
export const HASH_PREFIX = 'hmac-sha256:';

/** HMAC-SHA-256 of a secret key under the pepper: 64 lower-case hex digits. Cannot be used to log in. */
export function hashSecret(pepper: string | KeyObject, secret: string): string {
  return createHmac('sha256', pepper).update(secret, 'utf8').digest('hex');
}
