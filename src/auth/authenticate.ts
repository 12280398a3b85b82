import { hash } from 'node:crypto';
import type { Clock } from '../kernel/clock.ts';
import { contextOf, type Merchant, type Middleware } from '../kernel/context.ts';
import { type Problem, problem } from '../kernel/problem.ts';
import { readBearer } from './bearer.ts';
import { challenge } from './challenge.ts';
import { isInForce, type KeyEntry, type KeySource } from './key-source.ts';

/** `key` serves to ask later whether the secret key is still in force; the secret key itself is not kept. */
export type Authentication =
  | { kind: 'merchant'; merchant: Merchant; key: KeyEntry }
  | { kind: 'refused'; problem: Problem };

/** Checked in place of an unknown key's entry, so that it takes the same work as a known one's. Is never valid. */
const UNKNOWN_KEY: KeyEntry = {
  digest: '',
  merchantCode: '',
  keyId: '',
  scopes: [],
  notBeforeMs: Number.NEGATIVE_INFINITY,
  expiresAtMs: Number.POSITIVE_INFINITY,
  revokedAtMs: Number.NEGATIVE_INFINITY,
};

/** Keys that were right a moment ago: as many as a busy gateway's merchants have. */
const REMEMBERED = 10_000;

/** Tells who calls. Knows no HTTP server: for requests and upgrades alike. */
export class Authenticator {
  readonly #keys: Pick<KeySource, 'find'> & Partial<Pick<KeySource, 'generation'>>;
  readonly #clock: Clock;
  readonly #realm: string;
  /** Every invalid key gets the same answer, to prevent probing. */
  readonly #invalidKey: Authentication;
  /**
   * Right keys, by a plain digest of the secret: an HMAC costs as much as the rest of authentication. Wrong ones of every
   * kind stay out, so that they all take the same work.
   */
  readonly #right = new Map<string, KeyEntry>();
  #generation: number | undefined;

  constructor(
    keys: Pick<KeySource, 'find'> & Partial<Pick<KeySource, 'generation'>>,
    options: { realm: string },
    clock: Clock,
  ) {
    this.#keys = keys;
    this.#clock = clock;
    this.#realm = options.realm;
    const detail = 'The secret key is unknown, revoked, expired or not yet valid.';
    const headers = challenge(options.realm, { error: 'invalid_token' });
    this.#invalidKey = { kind: 'refused', problem: problem('invalid_key', detail, { headers }) };
  }

  /** @param rawHeaders names and values in turn, as they stood on the wire */
  authenticate(rawHeaders: readonly string[]): Authentication {
    const bearer = readBearer(rawHeaders);
    if (bearer.kind === 'refused') {
      const headers = challenge(this.#realm);
      return { kind: 'refused', problem: problem('missing_credentials', bearer.reason, { headers }) };
    }
    const digest = hash('sha256', bearer.secret, 'base64');
    const entry = this.#remembered(digest) ?? this.#keys.find(bearer.secret) ?? UNKNOWN_KEY;
    if (!isInForce(entry, this.#clock.wallMs())) {
      this.#right.delete(digest);
      return this.#invalidKey;
    }
    this.#remember(digest, entry);
    return { kind: 'merchant', merchant: merchantOf(entry), key: entry };
  }

  #remembered(digest: string): KeyEntry | undefined {
    if (this.#keys.generation === this.#generation) return this.#right.get(digest);
    this.#right.clear();
    this.#generation = this.#keys.generation;
    return undefined;
  }

  #remember(digest: string, entry: KeyEntry): void {
    if (this.#keys.generation === undefined || this.#right.has(digest)) return;
    if (this.#right.size === REMEMBERED) this.#right.clear();
    this.#right.set(digest, entry);
  }
}

function merchantOf({ merchantCode, keyId, scopes }: KeyEntry): Merchant {
  return { code: merchantCode, keyId, scopes };
}

/** Puts the merchant into the request's context, or refuses with 401. Reads no body. */
export function authenticate(authenticator: Authenticator): Middleware {
  return (req, _res, next) => {
    const answer = authenticator.authenticate(req.rawHeaders);
    if (answer.kind === 'refused') return next(answer.problem);
    contextOf(req).merchant = answer.merchant;
    next();
  };
}
