import type { Clock } from '../kernel/clock.ts';
import { isInForce, type KeyEntry, type KeySource } from './key-source.ts';

const CHECK_EVERY_MS = 500;

interface Session {
  /** The entry that the session was opened with. */
  opened: KeyEntry;
  end: () => void;
}

/**
 * Connections that outlive their authentication, such as WebSockets. Each is ended when its secret key is not in force any
 * more, belongs to another merchant, or has lost a scope.
 */
export class OpenSessions {
  readonly #keys: Pick<KeySource, 'again'>;
  readonly #clock: Pick<Clock, 'wallMs'>;
  readonly #open = new Set<Session>();
  #timer: NodeJS.Timeout | undefined;

  constructor(keys: Pick<KeySource, 'again' | 'onChange'>, clock: Pick<Clock, 'wallMs'>) {
    this.#keys = keys;
    this.#clock = clock;
    keys.onChange(() => this.#check());
  }

  /**
   * @param opened from the connection's authentication
   * @param end closes the connection; called at most once. Must not throw
   * @returns to be called when the connection has closed
   */
  add(opened: KeyEntry, end: () => void): () => void {
    const session = { opened, end };
    this.#open.add(session);
    // Keys expire, and revocations that lie ahead arrive, without a change of the keys.
    this.#timer ??= setInterval(() => this.#check(), CHECK_EVERY_MS).unref();
    return () => this.#remove(session);
  }

  #check(): void {
    const nowMs = this.#clock.wallMs();
    for (const session of this.#open) {
      if (this.#mayStay(session.opened, nowMs)) continue;
      this.#remove(session);
      session.end();
    }
  }

  #mayStay(opened: KeyEntry, nowMs: number): boolean {
    const now = this.#keys.again(opened);
    if (!now || !isInForce(now, nowMs) || now.merchantCode !== opened.merchantCode) return false;
    return now.scopes.includes('*') || opened.scopes.every((scope) => now.scopes.includes(scope));
  }

  #remove(session: Session): void {
    this.#open.delete(session);
    if (this.#open.size > 0) return;
    clearInterval(this.#timer);
    this.#timer = undefined;
  }
}
