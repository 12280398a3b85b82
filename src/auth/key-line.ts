import { isSecret } from './bearer.ts';
import { HASH_PREFIX, hashSecret } from './hash-secret.ts';
import { parseKeyFile } from './key-file.ts';

export interface KeyLineInput {
  id: string;
  /** Not kept, and not in what is returned. */
  secret: string;
  /** The gateway's `auth.pepper`. */
  pepper: string;
  /** Default: left out, which means all. */
  scopes?: readonly string[] | undefined;
}

/**
 * One item of a merchant's `keys` in the key file: `- { id: "…", hash: "hmac-sha256:…" }`.
 *
 * @throws Error if the secret could not be sent, KeyFileError if the file would be refused with it
 */
export function keyLine({ id, secret, pepper, scopes }: KeyLineInput): string {
  if (!isSecret(secret))
    throw new Error('the secret key cannot be sent as a bearer token of at most 512 characters');
  // A JSON string is a double-quoted YAML string.
  const members = [`id: ${JSON.stringify(id)}`, `hash: "${HASH_PREFIX}${hashSecret(pepper, secret)}"`];
  if (scopes) members.push(`scopes: [${scopes.map((scope) => JSON.stringify(scope)).join(', ')}]`);
  const item = `{ ${members.join(', ')} }`;
  parseKeyFile(Buffer.from(`merchants: [{ code: check, keys: [${item}] }]`));
  return `- ${item}`;
}
