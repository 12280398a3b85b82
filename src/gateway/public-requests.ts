import type { IncomingMessage, ServerResponse } from 'node:http';
import { readKey } from '../idempotency/key.ts';
import { contextOf, hasBody, type Middleware, onEnd } from '../lib/context.ts';
import { type Problem, problem, problemDocument, sendProblemOrCut } from '../lib/problem.ts';
import { type BodyLimits, lateBody, takeBody } from '../requests/body.ts';
import { hasField } from '../requests/fields.ts';
import { mayHaveMembers, overrideInBody } from '../requests/members.ts';
import type { PublicPaths } from '../requests/public-paths.ts';

export interface PublicRequestsOptions {
  paths: PublicPaths;
  /** The headers that carry an idempotency key. */
  keyHeaders: readonly string[];
  /** Why the request is refused, if too many public requests are in flight. */
  refusalOf(req: IncomingMessage): Problem | undefined;
  limits: BodyLimits;
  forward: Middleware;
}

/** Forwards requests on public paths, which have no merchant. Passes every other request to the next middleware. */
export function forwardPublic(options: PublicRequestsOptions): Middleware {
  const { paths, keyHeaders, refusalOf, limits, forward } = options;
  return async (req, res, next) => {
    const identity = paths.identityOf(req);
    if (!identity || expectsProtection(req, keyHeaders)) return next();
    contextOf(req).identity = identity;
    const refusal = refusalOf(req);
    if (refusal) return next(refusal);
    if (hasBody(req) && mayHaveMembers(req)) {
      const taken = await takeBody(req, res, limits);
      if (taken === 'gone') return;
      if (typeof taken === 'object') return next(taken);
      // The backend may take it for a request with another method, which is not public.
      if (overrideInBody(req, contextOf(req).body) !== undefined) return next();
    } else if (hasBody(req)) limitUpload(req, res, limits.bodyTimeoutMs);
    return forward(req, res, next);
  };
}

/** Ends a request whose body has not arrived in time. The backend does not get the end of that body. */
function limitUpload(req: IncomingMessage, res: ServerResponse, bodyTimeoutMs: number): void {
  const context = contextOf(req);
  const timer = setTimeout(() => {
    if (req.complete) return;
    const refusal = lateBody(bodyTimeoutMs);
    context.outcome = refusal.code;
    // After an answer, Node does not tell the request that its connection has closed. The backend must not wait for the rest.
    const aborted = Object.assign(new Error('aborted'), { code: 'ECONNRESET' });
    req.socket.once('close', () => req.destroy(aborted));
    sendProblemOrCut(res, problemDocument(refusal, context.requestId));
  }, bodyTimeoutMs);
  onEnd(context, () => clearTimeout(timer));
}

/** Public requests in flight, of all versions of the application: at most a quarter of the streams, so that merchants have the others. */
export class PublicShare {
  readonly #most: number;
  #open = 0;

  constructor(maxStreams: number) {
    this.#most = Math.max(1, Math.floor(maxStreams / 4));
  }

  /** Counts a request until its response is closed. Returns a refusal if there are too many. */
  enter(req: IncomingMessage): Problem | undefined {
    if (this.#open >= this.#most) {
      const detail = 'Too many public requests are in flight. The request was not sent; ask again.';
      return problem('overloaded', detail);
    }
    this.#open++;
    onEnd(contextOf(req), () => this.#open--);
    return undefined;
  }
}

/**
 * A merchant who sends credentials and an idempotency key relies on the key, so the request is authenticated and protected
 * like on every other path. Without credentials there is no merchant whose key it could be.
 */
const expectsProtection = ({ rawHeaders }: IncomingMessage, keyHeaders: readonly string[]): boolean =>
  hasField(rawHeaders, 'authorization') && readKey(rawHeaders, keyHeaders).kind !== 'none';
