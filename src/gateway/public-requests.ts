import type { IncomingMessage } from 'node:http';
import { readKey } from '../idempotency/http/key.ts';
import { contextOf, type Middleware } from '../kernel/context.ts';
import { hasField } from '../kernel/fields.ts';
import type { Problem } from '../kernel/problem.ts';
import type { PublicPaths } from '../operations/public-paths.ts';

export interface PublicRequestsOptions {
  paths: PublicPaths;
  /** The headers that carry an idempotency key. */
  keyHeaders: readonly string[];
  /** Why the request is refused, if too many public requests are in flight. */
  refusalOf(req: IncomingMessage): Problem | undefined;
  forward: Middleware;
}

/** Forwards requests on public paths, which have no merchant. Passes every other request to the next middleware. */
export function forwardPublic({ paths, keyHeaders, refusalOf, forward }: PublicRequestsOptions): Middleware {
  return (req, res, next) => {
    const identity = paths.identityOf(req);
    if (!identity || expectsProtection(req, keyHeaders)) return next();
    contextOf(req).identity = identity;
    const refusal = refusalOf(req);
    if (refusal) return next(refusal);
    return forward(req, res, next);
  };
}

/**
 * A merchant who sends credentials and an idempotency key relies on the key, so the request is authenticated and protected
 * like on every other path. Without credentials there is no merchant whose key it could be.
 */
const expectsProtection = ({ rawHeaders }: IncomingMessage, keyHeaders: readonly string[]): boolean =>
  hasField(rawHeaders, 'authorization') && readKey(rawHeaders, keyHeaders).kind !== 'none';
