import { hash } from 'node:crypto';
import type { Clock } from '../lib/clock.ts';
import { contextOf, type Merchant, type Middleware } from '../lib/context.ts';
import { type Problem, problem } from '../lib/problem.ts';
import type { Step } from '../lib/trace.ts';
import { challenge, readBearer } from './authorization-header.ts';
import { isInForce, type KeyEntry, type KeySource } from './key-source.ts';
import { isMistyped } from './secret-key.ts';

/** Puts the merchant into the request's context, or refuses with 401. Runs before any body is read. */
export function authenticate(authenticator: Authenticator): Middleware {
  return (req, res, next) => {
    const context = contextOf(req);
    const step = context.spans?.begin('authenticate');
    const end = (authentication: Authentication, isGone = false) => {
      if (step) endStep(step, authentication);
      if (isGone) return;
      if (authentication.kind === 'refused') return next(authentication.problem);
      context.merchant = authentication.merchant;
      next();
    };
    const authentication = authenticator.authenticate(req.rawHeaders, context.client.address);
    if (authentication.kind !== 'refused' || !authentication.ask) return end(authentication);
    // The body stays unread meanwhile. If the merchant disconnects, nothing that was not sent before needs to be sent.
    return authentication.ask().then((asked) => end(asked, res.destroyed));
  };
}

/** Only a secret key that could not be checked is an error: other refusals are what the gateway is for. */
function endStep(step: Step, authentication: Authentication): void {
  if (authentication.kind === 'merchant') {
    step.end('merchant');
    return;
  }
  const { code, status } = authentication.problem;
  step.end(code, status >= 500 ? code : undefined);
}

/**
 * `key` identifies the secret key, to check later whether it is still in force. It does not contain the secret key.
 * `ask`: the key is not known here, and the source can find out about it; the result has no `ask`.
 */
export type Authentication =
  | { kind: 'merchant'; merchant: Merchant; key: KeyEntry }
  | { kind: 'refused'; problem: Problem; ask?: () => Promise<Authentication> };

/** Where the authenticator looks keys up. Without a generation it caches nothing. */
type Keys = Pick<KeySource, 'find'> & Partial<Pick<KeySource, 'generation' | 'ask'>>;

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

/** The answers to keys that could not be checked. Not 401: with that, a merchant would give up a key that is valid. */
const UNCHECKED: Record<'overloaded' | 'failed', Authentication> = {
  overloaded: refused(
    'overloaded',
    'Too many secret keys are being checked. The request was not sent; retry.',
  ),
  failed: refused(
    'upstream_unreachable',
    'The backend cannot check the secret key. The request was not sent; retry.',
    { status: 503, retryAfterS: 1 },
  ),
};

/** Size of the cache: about the number of keys that a busy gateway's merchants use. */
const MAX_CACHED_KEYS = 10_000;

/** Finds the merchant of a request by its secret key. Depends on no HTTP server, so it serves requests and upgrades. */
export class Authenticator {
  readonly #keys: Keys;
  readonly #clock: Clock;
  readonly #realm: string;
  /** Every invalid key gets the same answer, to prevent probing. */
  readonly #invalidKey: { kind: 'refused'; problem: Problem };
  /**
   * Valid keys by the plain SHA-256 of the secret key, because the HMAC of a search costs as much as the rest of
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
    this.#invalidKey = refused('invalid_key', detail, { headers });
  }

  /**
   * @param rawHeaders alternating names and values, as received
   * @param client the address of the client, for a source that must ask elsewhere
   */
  authenticate(rawHeaders: readonly string[], client = ''): Authentication {
    const bearer = readBearer(rawHeaders);
    if (bearer.kind === 'refused')
      return refused('missing_credentials', bearer.reason, { headers: challenge(this.#realm) });
    const digest = hash('sha256', bearer.secret, 'base64');
    const entry = this.#cached(digest) ?? this.#find(bearer.secret) ?? UNKNOWN_KEY;
    if (!isInForce(entry, this.#clock.wallMs())) {
      this.#validKeys.delete(digest);
      return this.#keys.ask && !isMistyped(bearer.secret)
        ? this.#askable(bearer.secret, client)
        : this.#invalidKey;
    }
    this.#cache(digest, entry);
    return { kind: 'merchant', merchant: merchantOf(entry), key: entry };
  }

  /** A mistyped key needs no search. Whether a key is mistyped is no secret: anyone can compute the checksum. */
  #find(secret: string): KeyEntry | undefined {
    return isMistyped(secret) ? undefined : this.#keys.find(secret);
  }

  #askable(secret: string, client: string): Authentication {
    return { kind: 'refused', problem: this.#invalidKey.problem, ask: () => this.#ask(secret, client) };
  }

  async #ask(secret: string, client: string): Promise<Authentication> {
    const answer = (await this.#keys.ask?.(secret, client)) ?? { kind: 'unknown' };
    if (answer.kind === 'known')
      return { kind: 'merchant', merchant: merchantOf(answer.entry), key: answer.entry };
    return answer.kind === 'unknown' ? this.#invalidKey : UNCHECKED[answer.why];
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

function refused(...of: Parameters<typeof problem>): { kind: 'refused'; problem: Problem } {
  return { kind: 'refused', problem: problem(...of) };
}

function merchantOf({ merchantCode, keyId, scopes }: KeyEntry): Merchant {
  return { code: merchantCode, keyId, scopes };
}
