import { createSecretKey, type KeyObject, randomBytes } from 'node:crypto';
import { HASH_PREFIX, hashSecret } from './hash-secret.ts';
import { type DeclaredKey, type KeyFile, KeyFileError } from './key-file.ts';
import type { KeyEntry } from './key-source.ts';

/** The same for all states of a file, so that an entry's digest stays the same when the file is read again. */
const RANDOM_PEPPER = randomBytes(32);

/** All keys of one state of the key file, by the digest of the secret key. Never changes: a new file makes a new index. */
export class KeyIndex {
  readonly #pepper: KeyObject;
  readonly #entries: ReadonlyMap<string, KeyEntry>;

  private constructor(pepper: KeyObject, entries: ReadonlyMap<string, KeyEntry>) {
    this.#pepper = pepper;
    this.#entries = entries;
  }

  /**
   * @param pepper without one the file may hold plain secrets only; they are then digested under the process' random pepper
   * @throws KeyFileError for a hash without a pepper, and for a secret key that occurs twice
   */
  static of(file: KeyFile, pepper: string | undefined): KeyIndex {
    if (pepper === undefined) refuseHashes(file);
    const key = createSecretKey(pepper === undefined ? RANDOM_PEPPER : Buffer.from(pepper, 'utf8'));
    return new KeyIndex(key, collect(file, key));
  }

  /** One HMAC and one look-up, whatever the secret. */
  find(secret: string): KeyEntry | undefined {
    return this.#entries.get(hashSecret(this.#pepper, secret));
  }

  /** The entry that the secret key of an earlier entry has in this index. */
  again({ digest }: KeyEntry): KeyEntry | undefined {
    return this.#entries.get(digest);
  }

  entries(): Iterable<KeyEntry> {
    return this.#entries.values();
  }

  get size(): number {
    return this.#entries.size;
  }
}

function* keysOf(file: KeyFile): Generator<{ merchantCode: string; key: DeclaredKey; path: string }> {
  for (const [m, merchant] of file.merchants.entries()) {
    for (const [k, key] of merchant.keys.entries()) {
      yield { merchantCode: merchant.code, key, path: `merchants[${m}].keys[${k}]` };
    }
  }
}

function refuseHashes(file: KeyFile): void {
  const hashed = [...keysOf(file)].filter(({ key }) => key.hash !== undefined);
  if (hashed.length === 0) return;
  throw new KeyFileError(
    hashed.map(({ path }) => `${path}.hash: cannot be checked without a pepper; set auth.pepper`),
  );
}

function collect(file: KeyFile, pepper: KeyObject): Map<string, KeyEntry> {
  const entries = new Map<string, KeyEntry>();
  const paths = new Map<string, string>();
  const mistakes: string[] = [];
  for (const { merchantCode, key, path } of keysOf(file)) {
    const digest = digestOf(key, pepper);
    const first = paths.get(digest);
    if (first !== undefined) mistakes.push(`${path}: is the same secret key as ${first}`);
    paths.set(digest, path);
    entries.set(digest, entryOf(digest, merchantCode, key));
  }
  if (mistakes.length > 0) throw new KeyFileError(mistakes);
  return entries;
}

function digestOf(key: DeclaredKey, pepper: KeyObject): string {
  if (key.dangerouslyPlainSecret !== undefined) return hashSecret(pepper, key.dangerouslyPlainSecret);
  return (key.hash ?? '').slice(HASH_PREFIX.length).toLowerCase();
}

function entryOf(digest: string, merchantCode: string, key: DeclaredKey): KeyEntry {
  return {
    digest,
    merchantCode,
    keyId: key.id,
    scopes: key.scopes,
    notBeforeMs: key.notBefore ?? Number.NEGATIVE_INFINITY,
    expiresAtMs: key.expiresAt ?? Number.POSITIVE_INFINITY,
    revokedAtMs: key.revokedAt ?? Number.POSITIVE_INFINITY,
  };
}
