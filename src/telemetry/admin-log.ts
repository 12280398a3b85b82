import type { Logger } from './logger.ts';

/** Logs what people do on the admin port. Satisfies the admin port's `AdminObserver`. Resolutions are logged by `Observer`. */
export class AdminLog {
  readonly #logger: Logger;

  constructor(logger: Logger) {
    this.#logger = logger;
  }

  loggedIn(by: string, address: string): void {
    this.#logger.info({ by, client: address }, 'somebody logged in to the console');
  }

  wrongLogin(address: string): void {
    this.#logger.warn({ client: address }, 'a login to the console was refused: wrong token');
  }

  wrongToken(path: string, address: string): void {
    this.#logger.warn({ path, client: address }, 'a request on the admin port was refused: wrong token');
  }

  bodyRead(by: string, scope: string, address: string): void {
    // The whole scope, because this line is the only trace.
    this.#logger.info({ by, scope, client: address }, 'a stored response was read in the console');
  }

  failed(error: unknown): void {
    this.#logger.error({ err: error }, 'a request on the admin port failed');
  }
}
