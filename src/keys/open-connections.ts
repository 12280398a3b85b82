import type { Clock } from '../lib/clock.ts';
import { isInForce, type KeyEntry, type KeySource } from './key-source.ts';

const CHECK_EVERY_MS = 500;

interface Connection {
  /** The entry of the secret key when the connection was opened. */
  opened: KeyEntry;
  end: () => void;
  renew?: (() => void) | undefined;
}

/**
 * Connections that outlive their authentication, such as WebSockets. A connection is ended when its secret key is no longer
 * in force, belongs to another merchant, or has lost a scope.
 */
export class OpenConnections {
  readonly #keys: Pick<KeySource, 'current'>;
  readonly #clock: Pick<Clock, 'wallMs'>;
  readonly #open = new Set<Connection>();
  #timer: NodeJS.Timeout | undefined;

  constructor(keys: Pick<KeySource, 'current' | 'onChange'>, clock: Pick<Clock, 'wallMs'>) {
    this.#keys = keys;
    this.#clock = clock;
    keys.onChange(() => this.#check());
  }

  /**
   * @param opened the key with which the connection was authenticated
   * @param end closes the connection; called at most once. Must not throw
   * @param renew called every half second. Uses the secret key once more, for sources that know only the keys in use
   * @returns a function to call when the connection has closed
   */
  add(opened: KeyEntry, end: () => void, renew?: () => void): () => void {
    const connection = { opened, end, renew };
    this.#open.add(connection);
    // A key can expire, or its future revokedAt can pass, without a change of the key file.
    this.#timer ??= setInterval(() => this.#check(), CHECK_EVERY_MS).unref();
    return () => this.#remove(connection);
  }

  #check(): void {
    const nowMs = this.#clock.wallMs();
    for (const connection of this.#open) {
      connection.renew?.();
      if (this.#mayContinue(connection.opened, nowMs)) continue;
      this.#remove(connection);
      connection.end();
    }
  }

  #mayContinue(opened: KeyEntry, nowMs: number): boolean {
    const now = this.#keys.current(opened);
    if (!now || !isInForce(now, nowMs) || now.merchantCode !== opened.merchantCode) return false;
    return now.scopes.includes('*') || opened.scopes.every((scope) => now.scopes.includes(scope));
  }

  #remove(connection: Connection): void {
    this.#open.delete(connection);
    if (this.#open.size > 0) return;
    clearInterval(this.#timer);
    this.#timer = undefined;
  }
}
