import { hash } from 'node:crypto';
import type { Clock } from '../kernel/clock.ts';
import { contextOf, type Merchant, type Middleware } from '../kernel/context.ts';
import { type Problem, problem } from '../kernel/problem.ts';
import { challenge, readBearer } from './authorization-header.ts';
import { isInForce, type KeyEntry, type KeySource } from './key-source.ts';
import { isMistyped } from './secret-key.ts';

/** Puts the merchant into the request's context, or refuses with 401. Runs before any body is read. */
export function authenticate(authenticator: Authenticator): Middleware {
  return (req, _res, next) => {
    const authentication = authenticator.authenticate(req.rawHeaders);
    if (authentication.kind === 'refused') return next(authentication.problem);
    contextOf(req).merchant = authentication.merchant;
    next();
  };
}

/** `key` identifies the secret key, to check later whether it is still in force. It does not contain the secret key. */
export type Authentication =
  | { kind: 'merchant'; merchant: Merchant; key: KeyEntry }
  | { kind: 'refused'; problem: Problem };

/** Where the authenticator looks keys up. Without a generation it caches nothing. */
type Keys = Pick<KeySource, 'find'> & Partial<Pick<KeySource, 'generation'>>;

/** The entry that an unknown key gets. It is never in force. With it, unknown and revoked keys take the same work. */
const UNKNOWN_KEY: KeyEntry = {
  digest: '',
  merchantCode: '',
  keyId: '',
  scopes: [],
  notBeforeMs: Number.NEGATIVE_INFINITY,
  expiresAtMs: Number.POSITIVE_INFINITY,
  revokedAtMs: Number.NEGATIVE_INFINITY,
};

/** Size of the cache: about the number of keys that a busy gateway's merchants use. */
const MAX_CACHED_KEYS = 10_000;

/** Finds the merchant of a request by its secret key. Depends on no HTTP server, so it serves requests and upgrades. */
export class Authenticator {
  readonly #keys: Keys;
  readonly #clock: Clock;
  readonly #realm: string;
  /** Every invalid key gets the same answer, to prevent probing. */
  readonly #invalidKey: Authentication;
  /**
   * Valid keys by the plain SHA-256 of the secret key, because the HMAC of a look-up costs as much as the rest of
   * authentication. Invalid keys are never cached, so that unknown, revoked and expired keys take the same time.
   */
  readonly #validKeys = new Map<string, KeyEntry>();
  /** The generation of the key source that `#validKeys` belongs to. */
  #generation: number | undefined;

  constructor(keys: Keys, options: { realm: string }, clock: Clock) {
    this.#keys = keys;
    this.#clock = clock;
    this.#realm = options.realm;
    const detail = 'The secret key is unknown, revoked, expired or not yet valid.';
    const headers = challenge(options.realm, { error: 'invalid_token' });
    this.#invalidKey = { kind: 'refused', problem: problem('invalid_key', detail, { headers }) };
  }

  /** @param rawHeaders alternating names and values, as received */
  authenticate(rawHeaders: readonly string[]): Authentication {
    const bearer = readBearer(rawHeaders);
    if (bearer.kind === 'refused') {
      const headers = challenge(this.#realm);
      return { kind: 'refused', problem: problem('missing_credentials', bearer.reason, { headers }) };
    }
    const digest = hash('sha256', bearer.secret, 'base64');
    const entry = this.#cached(digest) ?? this.#find(bearer.secret) ?? UNKNOWN_KEY;
    if (!isInForce(entry, this.#clock.wallMs())) {
      this.#validKeys.delete(digest);
      return this.#invalidKey;
    }
    this.#cache(digest, entry);
    return { kind: 'merchant', merchant: merchantOf(entry), key: entry };
  }

  /** A mistyped key needs no look-up. Whether a key is mistyped is no secret: anyone can compute the checksum. */
  #find(secret: string): KeyEntry | undefined {
    return isMistyped(secret) ? undefined : this.#keys.find(secret);
  }

  #cached(digest: string): KeyEntry | undefined {
    if (this.#keys.generation === this.#generation) return this.#validKeys.get(digest);
    this.#validKeys.clear();
    this.#generation = this.#keys.generation;
    return undefined;
  }

  #cache(digest: string, entry: KeyEntry): void {
    if (this.#keys.generation === undefined || this.#validKeys.has(digest)) return;
    if (this.#validKeys.size === MAX_CACHED_KEYS) this.#validKeys.clear();
    this.#validKeys.set(digest, entry);
  }
}

function merchantOf({ merchantCode, keyId, scopes }: KeyEntry): Merchant {
  return { code: merchantCode, keyId, scopes };
}
