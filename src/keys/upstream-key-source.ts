import { hash, randomBytes } from 'node:crypto';
import { isIPv6 } from 'node:net';
import type { Clock } from '../lib/clock.ts';
import type { ProbeAnswer } from '../lib/exchange.ts';
import type { Emit } from '../telemetry/emit.ts';
import type { UpstreamKeyOptions } from './auth-options.ts';
import { KeyCache, type KnownKey } from './key-cache.ts';
import type { KeyAnswer, KeyEntry, KeySource, KeySourceHealth } from './key-source.ts';
import { type Probed, ProbeQueue } from './probe-queue.ts';

export interface UpstreamKeySourceOptions extends UpstreamKeyOptions {
  /** Asks the backend for the merchant of a secret key. Must not throw. */
  probe: (secret: string) => Promise<ProbeAnswer>;
  clock: Clock;
  emit: Emit;
}

/** A key whose probe failed is probed again after this time, which `Retry-After` names. */
const RETRY_MS = 1000;

const LOG_EVERY_MS = 10_000;

/** One per process, so that equal digests in two processes mean nothing. */
const SALT = randomBytes(32).toString('base64');

const digestOf = (secret: string): string => hash('sha256', `${SALT}${secret}`, 'base64');

const INVALID: KeyAnswer = { kind: 'unknown' };
const UNCHECKED: KeyAnswer = { kind: 'unchecked', why: 'failed' };
const OVERLOADED: KeyAnswer = { kind: 'unchecked', why: 'overloaded' };

/**
 * Secret keys without a list: the backend says whose key it is (a probe), and the answer is kept for a short time. Secrets
 * are not kept, so only a request that carries a key, or an open session, can begin a probe of it. See ADR 21.
 */
export class UpstreamKeySource implements KeySource {
  /** The authenticator must not cache entries of this source: each use of a key may begin its renewal. */
  readonly generation = undefined;
  readonly #options: UpstreamKeySourceOptions;
  readonly #clock: Clock;
  readonly #cache: KeyCache;
  readonly #queue: ProbeQueue;
  /** Running checks by digest: one at a time for each key. */
  readonly #checks = new Map<string, Promise<KeyAnswer>>();
  readonly #listeners: (() => void)[] = [];
  /** Requests that wait for the probe of a new key, in all and by client. */
  #waiting = 0;
  readonly #waitingOf = new Map<string, number>();
  #lastFailure: string | undefined;
  #loggedAtMs = Number.NEGATIVE_INFINITY;

  constructor(options: UpstreamKeySourceOptions) {
    const { clock, timeoutMs } = options;
    this.#options = options;
    this.#clock = clock;
    this.#queue = new ProbeQueue({ ...options, waitMs: timeoutMs }, clock);
    // Long enough for the next probe to wait, run and fail too, so that a busy merchant waits for none of them.
    this.#cache = new KeyCache({ ...options, failureMs: RETRY_MS + 3 * timeoutMs }, clock);
  }

  find(secret: string): KeyEntry | undefined {
    const digest = digestOf(secret);
    const known = this.#cache.use(digest);
    if (!known) return undefined;
    if (this.#clock.monotonicMs() >= known.renewAtMs) void this.#check(digest, secret);
    return this.#cache.mayUse(known) ? known.entry : undefined;
  }

  async ask(secret: string, address: string): Promise<KeyAnswer> {
    const client = networkOf(address);
    const digest = digestOf(secret);
    const rejected = this.#cache.rejected(digest);
    if (rejected) return rejected;
    // Requests with known keys are not counted, so that a flood of new keys cannot crowd them out.
    if (this.#cache.known(digest)) return await this.#check(digest, secret);
    const { maxWaiting } = this.#options;
    const ofClient = this.#waitingOf.get(client) ?? 0;
    // One address may be half of the requests that wait.
    if (this.#waiting >= maxWaiting || ofClient >= Math.ceil(maxWaiting / 2)) {
      this.#options.emit('keyProbes', { result: 'overloaded' });
      return OVERLOADED;
    }
    this.#waiting++;
    this.#waitingOf.set(client, ofClient + 1);
    try {
      return await this.#check(digest, secret, client);
    } finally {
      this.#waiting--;
      const left = (this.#waitingOf.get(client) ?? 1) - 1;
      if (left === 0) this.#waitingOf.delete(client);
      else this.#waitingOf.set(client, left);
    }
  }

  async askWarnings(): Promise<string[]> {
    const { probe, path, refused } = this.#options;
    const answer = await probe(`oncegate-check-${randomBytes(16).toString('hex')}`);
    if (answer.kind === 'refused') return [];
    if (answer.kind === 'failed')
      return [`GET ${path} must answer ${refused.join(' or ')} to an invalid secret key: ${answer.reason}`];
    return [`GET ${path} accepts ANY secret key: everyone who calls the gateway is ${answer.merchantCode}`];
  }

  /** The entry for an open session, unless the key was refused, could not be checked for `staleMs`, or was forgotten. */
  current({ digest }: KeyEntry): KeyEntry | undefined {
    const known = this.#cache.known(digest);
    return known && this.#cache.mayContinue(known) ? known.entry : undefined;
  }

  entries(): undefined {
    return undefined;
  }

  /** Every key is checked again before its next use, and refusals are forgotten. */
  async reload(): Promise<void> {
    this.#cache.expireAll();
  }

  onChange(listener: () => void): void {
    this.#listeners.push(listener);
  }

  health(): KeySourceHealth {
    const keys = this.#cache.size;
    const known = `${keys} ${keys === 1 ? 'key is' : 'keys are'} known`;
    const failure = this.#lastFailure === undefined ? '' : `; the last probe failed: ${this.#lastFailure}`;
    const detail = `no key list: the backend is asked with GET ${this.#options.path}, and ${known}${failure}`;
    return { detail, keys };
  }

  close(): void {
    this.#queue.close();
  }

  #check(digest: string, secret: string, client = ''): Promise<KeyAnswer> {
    let check = this.#checks.get(digest);
    if (!check) {
      check = this.#probe(digest, secret, client).finally(() => this.#checks.delete(digest));
      this.#checks.set(digest, check);
    }
    return check;
  }

  async #probe(digest: string, secret: string, client: string): Promise<KeyAnswer> {
    let sentAtMs = 0;
    const answer = await this.#queue.run(this.#cache.known(digest) ? undefined : client, () => {
      sentAtMs = this.#clock.monotonicMs();
      return this.#options.probe(secret);
    });
    // The answer is from before a reload: ask again, also for a request that has joined this probe since.
    if (answer.kind !== 'overloaded' && !this.#cache.isCurrent(sentAtMs)) {
      this.#options.emit('keyProbes', { result: answer.kind });
      return this.#probe(digest, secret, client);
    }
    const known = this.#cache.known(digest);
    if (answer.kind === 'accepted' && known && known.entry.merchantCode !== answer.merchantCode)
      return this.#merchantChanged(known, answer.merchantCode);
    this.#options.emit('keyProbes', { result: answer.kind });
    this.#note(answer);
    switch (answer.kind) {
      case 'accepted': {
        const entry = this.#cache.accept(entryOf(digest, answer.merchantCode), sentAtMs);
        return { kind: 'known', entry };
      }
      case 'refused':
        return this.#reject(digest, INVALID, this.#options.refusedMs);
      case 'failed':
        return this.#keepOr(UNCHECKED, digest, known);
      case 'overloaded':
        return this.#keepOr(OVERLOADED, digest, known);
    }
  }

  /**
   * A record id contains the merchant code. Under a new code, retries of what was executed under the old one would be executed again. So
   * the secret key is unusable while the backend names another merchant.
   */
  #merchantChanged({ entry }: KnownKey, to: string): KeyAnswer {
    this.#options.emit('merchant_changed', { from: entry.merchantCode, to });
    return this.#reject(entry.digest, UNCHECKED, RETRY_MS);
  }

  #reject(digest: string, answer: KeyAnswer, forMs: number): KeyAnswer {
    const known = this.#cache.known(digest);
    this.#cache.reject(digest, answer, forMs);
    if (known && this.#cache.demote(known, forMs)) for (const listener of this.#listeners) listener();
    return answer;
  }

  /** The key could not be checked: the earlier answer counts while it may. */
  #keepOr(otherwise: KeyAnswer, digest: string, known: KnownKey | undefined): KeyAnswer {
    if (known) {
      this.#cache.postpone(known, RETRY_MS);
      if (this.#cache.mayUse(known)) return { kind: 'known', entry: known.entry };
    }
    // After an overload, the next request with a new key may find room in the queue.
    if (known || otherwise !== OVERLOADED) this.#cache.reject(digest, otherwise, RETRY_MS);
    return otherwise;
  }

  #note(answer: Probed): void {
    if (answer.kind === 'overloaded') return;
    const nowMs = this.#clock.monotonicMs();
    this.#lastFailure = answer.kind === 'failed' ? answer.reason : undefined;
    if (answer.kind === 'failed' && nowMs >= this.#loggedAtMs + LOG_EVERY_MS) {
      this.#loggedAtMs = nowMs;
      // The reason contains no secret.
      this.#options.emit('keys_unchecked', { reason: answer.reason });
    }
  }
}

/** Counts all addresses of an IPv6 /64 as one client, because whoever has one of them usually has them all. */
function networkOf(address: string): string {
  if (!isIPv6(address)) return address;
  const [head = [], tail = []] = address.split('::').map((part) => part.split(':').filter(Boolean));
  const zeros = Array(Math.max(0, 8 - head.length - tail.length)).fill('0');
  return [...head, ...zeros, ...tail].slice(0, 4).join(':');
}

/** The keys of this source have no ids, no scopes and no end of their own: the backend decides. */
function entryOf(digest: string, merchantCode: string): KeyEntry {
  return {
    ...{ digest, merchantCode, keyId: 'upstream', scopes: ['*'] },
    notBeforeMs: Number.NEGATIVE_INFINITY,
    expiresAtMs: Number.POSITIVE_INFINITY,
    revokedAtMs: Number.POSITIVE_INFINITY,
  };
}
