import { hash, randomBytes } from 'node:crypto';
import type { Session } from '../../console/contract.ts';
import type { Clock } from '../../lib/clock.ts';
import type { Login } from '../tokens.ts';

/** A session ends after this time without use. Requests that a timer of the page sends do not count as use. */
export const IDLE_MS = 30 * 60_000;
/** A session ends after this time, even if it is used. */
export const LASTS_MS = 8 * 3_600_000;
/** When there are more, the one that was not used for the longest time ends. */
const MAX_SESSIONS = 100;
/** 256 bits cannot be guessed. */
const RANDOM_BYTES = 32;

/** What a browser sends for its session. Browsers send a cookie to every port of a host, so the cookie alone opens nothing. */
export interface Credentials {
  readonly cookie: string;
  /** Only the login's answer tells it. */
  readonly secret: string;
}

/** A session that has not ended. Times are those of the monotonic clock. */
export interface OpenSession extends Login {
  readonly endsMs: number;
  idleEndsMs: number;
}

/**
 * The sessions of one process, in memory only, so that nobody can read one from a disk, and a restart ends them all. The
 * credentials are kept as a digest: a dump of the memory shows none that work.
 */
export class Sessions {
  readonly #clock: Clock;
  /** The sessions by the digest of their credentials. The one that was used last comes last. */
  readonly #open = new Map<string, OpenSession>();
  /** What {@link offer} has offered, until somebody takes it. */
  #offered: { digest: string; login: Login; onUsed: () => void } | undefined;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  get count(): number {
    return this.#open.size;
  }

  /**
   * Makes a code that logs in once, in place of a token. The one before is worthless then.
   *
   * @param onUsed called when it is used
   */
  offer(login: Login, onUsed: () => void): string {
    const code = randomBytes(RANDOM_BYTES).toString('base64url');
    this.#offered = { digest: hash('sha256', code), login, onUsed };
    return code;
  }

  /** Who logs in with the code. It is worthless from now on. */
  redeem(code: string): Login | undefined {
    const offered = this.#offered;
    if (offered?.digest !== hash('sha256', code)) return undefined;
    this.#offered = undefined;
    offered.onUsed();
    return offered.login;
  }

  /** @returns the credentials, which are not kept */
  begin(login: Login): Credentials & { session: OpenSession } {
    this.#dropEnded();
    const [longestUnused] = this.#open.keys();
    if (this.#open.size >= MAX_SESSIONS && longestUnused !== undefined) this.#open.delete(longestUnused);
    const nowMs = this.#clock.monotonicMs();
    const cookie = randomBytes(RANDOM_BYTES).toString('base64url');
    const secret = randomBytes(RANDOM_BYTES).toString('base64url');
    const session = { ...login, endsMs: nowMs + LASTS_MS, idleEndsMs: nowMs + IDLE_MS };
    this.#open.set(digestOf({ cookie, secret }), session);
    return { cookie, secret, session };
  }

  /**
   * Finds the session of these credentials, unless it has ended.
   *
   * @param isUse false for a request that a timer of the page sent: it does not extend the session
   */
  find(credentials: Credentials, isUse: boolean): OpenSession | undefined {
    const digest = digestOf(credentials);
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

  end(credentials: Credentials): void {
    this.#open.delete(digestOf(credentials));
  }

  /** What the page is told about its session. */
  view({ name, may, idleEndsMs, endsMs }: OpenSession): Session {
    const [wallMs, nowMs] = [this.#clock.wallMs(), this.#clock.monotonicMs()];
    const at = (ms: number) => new Date(wallMs + ms - nowMs).toISOString();
    return {
      ...{ name, may: [...may], nowAt: at(nowMs) },
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

const digestOf = ({ cookie, secret }: Credentials): string => hash('sha256', [cookie, secret].join(' '));
