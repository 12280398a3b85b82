import type { IncomingMessage, ServerResponse } from 'node:http';
import { contextOf, hasBody, type Middleware } from '../kernel/context.ts';
import { type Problem, problem } from '../kernel/problem.ts';
import { declaredTooLarge, readBody } from './body.ts';
import type { Operations } from './operations.ts';

export interface BodyLimits {
  bodyBytes: number;
  bodyTimeoutMs: number;
}

const NO_BODY = Buffer.alloc(0);

/** Finds the operation of a request. Reads its body only if the operation depends on it. */
export function identify(operations: Operations, limits: BodyLimits): Middleware {
  return (req, res, next) => {
    const context = contextOf(req);
    const head = operations.byHead(req);
    const identified = () => {
      const identity = operations.identify(head, req, context.body);
      context.identity = identity;
      if (identity.isRefused) next(problem('not_declared', 'No operation is declared for this request.'));
      else next();
    };
    if (!head.readsBody) return identified();
    const proceed = (taken: Taken) => {
      if (taken === 'read' || taken === 'too_large') identified();
      else if (taken !== 'gone') next(taken);
    };
    const taken = takeBody(req, res, limits);
    return taken instanceof Promise ? taken.then(proceed) : proceed(taken);
  };
}

/** What became of a body. `gone`: the merchant left before its end. A problem: it is to be refused. */
export type Taken = 'read' | 'too_large' | 'gone' | Problem;

/**
 * Reads the body into the request's context, if it is not there. A body that is too large is left in the request, to be
 * streamed. No promise if there is nothing to wait for.
 */
export function takeBody(
  req: IncomingMessage,
  res: ServerResponse,
  limits: BodyLimits,
): Taken | Promise<Taken> {
  const context = contextOf(req);
  if (context.body) return 'read';
  if (context.isTooLarge || declaredTooLarge(req, limits.bodyBytes)) return 'too_large';
  // Also if no body follows: otherwise Node closes the connection behind the answer.
  inviteBody(req, res);
  if (hasBody(req)) return receiveBody(req, limits);
  context.body = NO_BODY;
  return 'read';
}

async function receiveBody(req: IncomingMessage, { bodyBytes, bodyTimeoutMs }: BodyLimits): Promise<Taken> {
  const context = contextOf(req);
  const result = await readBody(req, bodyBytes, bodyTimeoutMs);
  switch (result.kind) {
    case 'body':
      context.body = result.body;
      return 'read';
    case 'too_large':
      req.unshift(result.read);
      context.isTooLarge = true;
      return 'too_large';
    case 'timeout':
      return problem('request_timeout', `The request body did not arrive within ${bodyTimeoutMs} ms.`);
    case 'aborted':
      return 'gone';
  }
}

/** The same for a request that needs its whole body in memory. */
export async function takeWholeBody(
  req: IncomingMessage,
  res: ServerResponse,
  limits: BodyLimits,
): Promise<'read' | 'gone' | Problem> {
  const taken = await takeBody(req, res, limits);
  if (taken !== 'too_large') return taken;
  return problem('body_too_large', `The request body is larger than ${limits.bodyBytes} bytes.`);
}

/** Answers `100 Continue` to a merchant who waits for it; not before the request was let in. */
export function inviteBody(req: IncomingMessage, res: ServerResponse): void {
  const context = contextOf(req);
  const waits = req.headers.expect !== undefined && req.httpVersion !== '1.0' && !context.isInvited;
  if (!waits || res.headersSent || res.destroyed) return;
  context.isInvited = true;
  res.writeContinue();
}
