import { hash, randomBytes } from 'node:crypto';
import type { Clock } from '../../kernel/clock.ts';
import type { Login } from '../tokens.ts';
import type { Session } from './contract.ts';

/** A session ends after this time without use. Requests that a timer of the page sends do not count as use. */
export const IDLE_MS = 30 * 60_000;
/** A session ends after this time, even if it is used. */
export const LASTS_MS = 8 * 3_600_000;
/** When there are more, the one that was not used for the longest time ends. */
const MAX_SESSIONS = 100;
/** 256 bits cannot be guessed. */
const RANDOM_BYTES = 32;

/** A session that has not ended. Times are those of the monotonic clock. */
export interface OpenSession extends Login {
  readonly csrf: string;
  readonly endsMs: number;
  idleEndsMs: number;
}

/**
 * The sessions of one process, in memory only, so that nobody can read one from a disk, and a restart ends them all. The cookie's
 * value is kept as a digest: a dump of the memory shows no cookie that works.
 */
export class Sessions {
  readonly #clock: Clock;
  /** By the digest of the cookie's value. The one that was used last comes last. */
  readonly #open = new Map<string, OpenSession>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  get count(): number {
    return this.#open.size;
  }

  /** @returns the cookie's value, which is not kept */
  begin(login: Login): { secret: string; session: OpenSession } {
    this.#dropEnded();
    const [longestUnused] = this.#open.keys();
    if (this.#open.size >= MAX_SESSIONS && longestUnused !== undefined) this.#open.delete(longestUnused);
    const nowMs = this.#clock.monotonicMs();
    const secret = randomBytes(RANDOM_BYTES).toString('base64url');
    const csrf = randomBytes(RANDOM_BYTES).toString('base64url');
    const session = { ...login, csrf, endsMs: nowMs + LASTS_MS, idleEndsMs: nowMs + IDLE_MS };
    this.#open.set(hash('sha256', secret), session);
    return { secret, session };
  }

  /**
   * The session of a cookie. Undefined: there is none, or it has ended.
   *
   * @param isUse false for a request that a timer of the page sent: it does not extend the session
   */
  find(secret: string, isUse: boolean): OpenSession | undefined {
    const digest = hash('sha256', secret);
    const session = this.#open.get(digest);
    if (!session) return undefined;
    if (this.#hasEnded(session)) {
      this.#open.delete(digest);
      return undefined;
    }
    if (isUse) {
      session.idleEndsMs = this.#clock.monotonicMs() + IDLE_MS;
      this.#open.delete(digest);
      this.#open.set(digest, session);
    }
    return session;
  }

  end(secret: string): void {
    this.#open.delete(hash('sha256', secret));
  }

  /** What the page is told about its session. */
  view({ name, may, csrf, idleEndsMs, endsMs }: OpenSession): Session {
    const [wallMs, nowMs] = [this.#clock.wallMs(), this.#clock.monotonicMs()];
    const at = (ms: number) => new Date(wallMs + ms - nowMs).toISOString();
    return {
      ...{ name, may: [...may], csrf, nowAt: at(nowMs) },
      idleEndsAt: at(Math.min(idleEndsMs, endsMs)),
      endsAt: at(endsMs),
    };
  }

  #hasEnded({ idleEndsMs, endsMs }: OpenSession): boolean {
    return this.#clock.monotonicMs() >= Math.min(idleEndsMs, endsMs);
  }

  #dropEnded(): void {
    for (const [digest, session] of this.#open) if (this.#hasEnded(session)) this.#open.delete(digest);
  }
}
