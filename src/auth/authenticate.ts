import { hash } from 'node:crypto';
import type { Clock } from '../kernel/clock.ts';
import { contextOf, type Merchant } from '../kernel/context.ts';
import { type Problem, problem, sendProblem } from '../kernel/problem.ts';
import type { Step } from '../kernel/step.ts';
import { readBearer } from './bearer.ts';
import { challenge } from './challenge.ts';
import type { KeyEntry, KeySource } from './key-source.ts';

export type Authentication = { kind: 'merchant'; merchant: Merchant } | { kind: 'refused'; problem: Problem };

/** Checked in place of an unknown key's entry, so that it takes the same work as a known one's. Is never valid. */
const NOBODY: KeyEntry = {
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
  /** One answer for every wrong key: which of them it was is nobody's business who does not own it. */
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
    const entry = this.#remembered(digest) ?? this.#keys.find(bearer.secret) ?? NOBODY;
    if (!isInForce(entry, this.#clock.wallMs())) {
      this.#right.delete(digest);
      return this.#invalidKey;
    }
    this.#remember(digest, entry);
    return { kind: 'merchant', merchant: merchantOf(entry) };
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

/** All three comparisons are always made: how long the answer takes must not tell which of them failed. */
function isInForce(entry: KeyEntry, nowMs: number): boolean {
  const started = Number(entry.notBeforeMs <= nowMs);
  const unexpired = Number(nowMs < entry.expiresAtMs);
  const unrevoked = Number(nowMs < entry.revokedAtMs);
  return (started & unexpired & unrevoked) === 1;
}

function merchantOf({ merchantCode, keyId, scopes }: KeyEntry): Merchant {
  return { code: merchantCode, keyId, scopes };
}

/** A step: puts the merchant into the request's context, or answers 401. Reads no body. */
export function authenticate(authenticator: Authenticator): Step {
  return (req, res, next) => {
    const context = contextOf(req);
    const answer = authenticator.authenticate(req.rawHeaders);
    if (answer.kind === 'refused') {
      context.outcome = answer.problem.code;
      sendProblem(res, answer.problem, context.requestId);
      return;
    }
    context.merchant = answer.merchant;
    next();
  };
}
