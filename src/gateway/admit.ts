import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Middleware, RequestContext } from '../kernel/context.ts';
import { problem } from '../kernel/problem.ts';

export interface AdmitOptions {
  /** Begins a request's context; see Access.begin. */
  begin(req: IncomingMessage, res: ServerResponse): RequestContext;
  /** Requests that are being answered, this one included. */
  open(): number;
  maxInFlight: number;
  lifecycle: Lifecycle;
}

/** Begins a request's context. Refuses if the gateway is closing or has no room. */
export function admit({ begin, open, maxInFlight, lifecycle }: AdmitOptions): Middleware {
  const again = { retryAfterS: 1 };
  return (req, res, next) => {
    begin(req, res);
    // The merchant's client shall not send its next request on a connection that is about to end.
    if (lifecycle.draining) res.shouldKeepAlive = false;
    if (lifecycle.closing) next(problem('shutting_down', 'The request was not sent; ask again.', again));
    else if (open() > maxInFlight) next(problem('overloaded', 'The request was not sent; ask again.', again));
    else next();
  };
}

/**
 * Where a process is in its life: serving; draining (still serves, but says that it is about to end); closing (what
 * runs may end, nothing new begins).
 */
export class Lifecycle {
  #state: 'serving' | 'draining' | 'closing' = 'serving';

  get draining(): boolean {
    return this.#state !== 'serving';
  }

  get closing(): boolean {
    return this.#state === 'closing';
  }

  drain(): void {
    if (this.#state === 'serving') this.#state = 'draining';
  }

  close(): void {
    this.#state = 'closing';
  }
}
