import { createHmac, createSecretKey, type KeyObject, randomBytes } from 'node:crypto';
import { isSecret } from './authorization-header.ts';
import { type DeclaredKey, type KeyFile, KeyFileError, parseKeyFile } from './key-file.ts';
import type { KeyEntry } from './key-source.ts';
import { isMistyped, MISTYPED } from './secret-key.ts';

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
   * @param pepper undefined: the file may contain plain secrets only, which are hashed with a random pepper
   * @throws KeyFileError if the file has a hash and there is no pepper or another one, or if a secret key occurs twice
   */
  static of(file: KeyFile, pepper: string | undefined): KeyIndex {
    if (pepper === undefined) refuseHashes(file);
    else if (file.pepperCheck !== undefined && file.pepperCheck !== pepperCheckOf(pepper))
      throw new KeyFileError(['pepperCheck: auth.pepper is not the pepper that made these hashes']);
    const key = createSecretKey(pepper === undefined ? RANDOM_PEPPER : Buffer.from(pepper, 'utf8'));
    return new KeyIndex(key, entriesOf(file, key));
  }

  /** Computes one HMAC and does one look-up, for known and unknown keys. */
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

function entriesOf(file: KeyFile, pepper: KeyObject): Map<string, KeyEntry> {
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

/** What {@link keyLine} needs. */
export interface KeyLineInput {
  /** 1 to 64 printable ASCII characters without spaces. */
  id: string;
  /** Only its hash is in the result. */
  secret: string;
  /** The gateway's `auth.pepper`. */
  pepper: string;
  /** Default: the line has no scopes, so the key may call all operations. */
  scopes?: readonly string[] | undefined;
}

/**
 * Makes one item of a merchant's `keys` in the key file: `- { id: "…", hash: "hmac-sha256:…" }`.
 *
 * @throws Error if the secret key is no bearer token, KeyFileError if a key file with this item would be refused
 */
export function keyLine({ id, secret, pepper, scopes }: KeyLineInput): string {
  if (!isSecret(secret))
    throw new Error('the secret key cannot be sent as a bearer token of at most 512 characters');
  if (isMistyped(secret)) throw new Error(`the secret key ${MISTYPED}`);
  // Every JSON string is also a double-quoted YAML string.
  const members = [`id: ${JSON.stringify(id)}`, `hash: "${hashOf(pepper, secret)}"`];
  if (scopes) members.push(`scopes: [${scopes.map((scope) => JSON.stringify(scope)).join(', ')}]`);
  const item = `{ ${members.join(', ')} }`;
  parseKeyFile(Buffer.from(`merchants: [{ code: check, keys: [${item}] }]`));
  return `- ${item}`;
}
