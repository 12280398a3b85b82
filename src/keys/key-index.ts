import { createHmac, createSecretKey, type KeyObject, randomBytes } from 'node:crypto';
import { type DeclaredKey, type KeyFile, KeyFileError, parseKeyFile } from './key-file.ts';
import type { KeyEntry } from './key-source.ts';

/** The prefix of a hash in the key file; names the function that made it. */
const HASH_PREFIX = 'hmac-sha256:';

/** The pepper of key files without hashes. One per process, so that a key keeps its digest when the file is reloaded. */
const RANDOM_PEPPER = randomBytes(32);

/**
 * HMAC-SHA-256 of a secret key, keyed with the pepper. The result cannot be used to log in.
 *
 * @returns 64 lower-case hex digits
 */
export function hashSecret(pepper: string | KeyObject, secret: string): string {
  return createHmac('sha256', pepper).update(secret, 'utf8').digest('hex');
}

/** The `hash` of a secret key in the key file. */
export const hashOf = (pepper: string | KeyObject, secret: string): string =>
  `${HASH_PREFIX}${hashSecret(pepper, secret)}`;

/** The `pepperCheck` of a key file with hashes under this pepper. No secret key has this text, because of its spaces. */
export const pepperCheckOf = (pepper: string | KeyObject): string =>
  hashOf(pepper, 'oncegate checks the pepper');

/** All keys of one version of the key file, by the HMAC of the secret key. Immutable: a reload makes a new index. */
export class KeyIndex {
  readonly #pepper: KeyObject;
  readonly #entries: ReadonlyMap<string, KeyEntry>;

  private constructor(pepper: KeyObject, entries: ReadonlyMap<string, KeyEntry>) {
    this.#pepper = pepper;
    this.#entries = entries;
  }

  /**
   * @param pepper without one, the file may contain plain secrets only, which are hashed with a random pepper
   * @throws KeyFileError if the file has a hash and there is no pepper or another one, or if a secret key occurs twice
   */
  static of(file: KeyFile, pepper: string | undefined): KeyIndex {
    if (pepper !== undefined && (file.pepperCheck ?? pepperCheckOf(pepper)) !== pepperCheckOf(pepper))
      throw new KeyFileError(['pepperCheck: the pepper is not the one that made these hashes']);
    const key = createSecretKey(pepper === undefined ? RANDOM_PEPPER : Buffer.from(pepper, 'utf8'));
    return new KeyIndex(key, entriesOf(file, pepper, key));
  }

  /** Computes one HMAC and searches once, for known and unknown keys. */
  find(secret: string): KeyEntry | undefined {
    return this.#entries.get(hashSecret(this.#pepper, secret));
  }

  /** This index's entry for the secret key of an earlier entry. */
  current({ digest }: KeyEntry): KeyEntry | undefined {
    return this.#entries.get(digest);
  }

  entries(): Iterable<KeyEntry> {
    return this.#entries.values();
  }

  get size(): number {
    return this.#entries.size;
  }
}

/** Once for all hashes, and with what an operator writes. */
const NO_PEPPER =
  'the file: has hashes, and there is no pepper to check them with. Set auth.pepper to the one that made them, such as pepper: "${' +
  'ONCEGATE_PEPPER}"';

/** @throws KeyFileError */
function entriesOf(
  { merchants }: KeyFile,
  pepper: string | undefined,
  key: KeyObject,
): Map<string, KeyEntry> {
  const entries = new Map<string, KeyEntry>();
  const paths = new Map<string, string>();
  const mistakes: string[] = [];
  const hasHashes = merchants.some(({ keys }) => keys.some(({ hash }) => hash !== undefined));
  if (hasHashes && pepper === undefined) mistakes.push(NO_PEPPER);
  for (const [m, { code, keys }] of merchants.entries()) {
    for (const [k, declared] of keys.entries()) {
      const path = `merchants[${m}].keys[${k}]`;
      const entry = entryOf(declared, code, key);
      const twin = paths.get(entry.digest);
      if (twin !== undefined) mistakes.push(`${path}: is the same secret key as ${twin}`);
      paths.set(entry.digest, path);
      entries.set(entry.digest, entry);
    }
  }
  if (mistakes.length > 0) throw new KeyFileError(mistakes);
  return entries;
}

function entryOf(declared: DeclaredKey, merchantCode: string, pepper: KeyObject): KeyEntry {
  const { hash = '', dangerouslyPlainSecret: secret } = declared;
  return {
    digest: secret === undefined ? hash.slice(HASH_PREFIX.length).toLowerCase() : hashSecret(pepper, secret),
    merchantCode,
    keyId: declared.id,
    scopes: declared.scopes,
    notBeforeMs: declared.notBefore ?? Number.NEGATIVE_INFINITY,
    expiresAtMs: declared.expiresAt ?? Number.POSITIVE_INFINITY,
    revokedAtMs: declared.revokedAt ?? Number.POSITIVE_INFINITY,
  };
}

/**
 * One item of a merchant's `keys` in the key file.
 *
 * @throws KeyFileError if a key file with this item would be refused
 */
export function keyLine(id: string, hash: string, scopes?: readonly string[]): string {
  // Every JSON string is also a double-quoted YAML string.
  const members = [`id: ${JSON.stringify(id)}`, `hash: "${hash}"`];
  if (scopes) members.push(`scopes: [${scopes.map((scope) => JSON.stringify(scope)).join(', ')}]`);
  const item = `{ ${members.join(', ')} }`;
  parseKeyFile(Buffer.from(`merchants: [{ code: check, keys: [${item}] }]`));
  return `- ${item}`;
}
