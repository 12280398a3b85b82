import type { IncomingMessage, ServerResponse } from 'node:http';
import { contextOf } from '../kernel/context.ts';
import { valuesOf } from '../kernel/fields.ts';
import { hasBody } from '../kernel/has-body.ts';
import { type Problem, problem, sendProblem } from '../kernel/problem.ts';
import type { Step } from '../kernel/step.ts';
import { declaredTooLarge, readBody } from './body.ts';
import type { HeadMatch, Operations } from './operations.ts';
import { ambiguityOf } from './target.ts';

export interface BodyLimits {
  bodyBytes: number;
  bodyTimeoutMs: number;
}

/** Refuses with a problem, and remembers it as the outcome. */
function refuse(req: IncomingMessage, res: ServerResponse, p: Problem): void {
  const context = contextOf(req);
  context.outcome = p.code;
  sendProblem(res, p, context.requestId);
}

/** Why a head means different things to different readers, or undefined. */
export function refusalOfHead(req: IncomingMessage): Problem | undefined {
  const ambiguity = ambiguityOf(req.url ?? '');
  if (ambiguity) return problem('invalid_target', `The request target has ${ambiguity}.`);
  // Node takes two Host lines; the backend may read the other one.
  if (valuesOf(req.rawHeaders, 'host').length > 1)
    return problem('invalid_request', 'The header host was sent twice.');
  // Node reads the chunks of `gzip, chunked` and leaves the rest to us; nobody here asked for it.
  const codings = valuesOf(req.rawHeaders, 'transfer-encoding');
  // HTTP/1.0 knows no chunks: another reader may take them for the next request.
  if (codings.length > 0 && req.httpVersion === '1.0') {
    return problem('invalid_request', 'HTTP/1.0 has no transfer codings.');
  }
  if (codings.some((coding) => coding.trim().toLowerCase() !== 'chunked')) {
    return problem('invalid_request', 'The body has a transfer coding other than chunked.');
  }
  return undefined;
}

/** Step 2 of the request's path. */
export const checkTarget: Step = (req, res, next) => {
  const refusal = refusalOfHead(req);
  if (refusal) refuse(req, res, refusal);
  else next();
};

/** Why a request must not go where its head points to, or undefined. */
export function refusalOfRoute(head: HeadMatch, req: IncomingMessage): Problem | undefined {
  if (head.kind === 'lookalike') {
    return problem('invalid_target', `The request target could be read as ${head.path}; spell it so.`);
  }
  // A script may take its action from the body of any method: it would be executed past the engine and the scopes.
  if (head.kind === 'other_method' && hasBody(req)) {
    return problem('invalid_target', `The request target takes no body with ${req.method}.`);
  }
  return undefined;
}

/** Step 4: finds the operation, and reads the body of what the executor will send. Leaves the rest to the pass-through. */
export function matchOperation(operations: Operations, limits: BodyLimits): Step {
  return (req, res, next) => {
    const head = operations.byHead(req.method ?? '', req.url ?? '');
    const refusal = refusalOfRoute(head, req);
    if (refusal) return refuse(req, res, refusal);
    if (head.kind !== 'operation' && head.kind !== 'by_body') return next();
    const matched = (body: Buffer): void => {
      const context = contextOf(req);
      context.body = body;
      const match = head.kind === 'operation' ? head : operations.byBody(head.candidates, body);
      if (match.kind === 'ambiguous') {
        refuse(req, res, problem('invalid_body', `The request body is ambiguous: ${match.reason}.`));
        return;
      }
      context.operation = match.operation;
      next();
    };
    if (!hasBody(req)) {
      inviteBody(req, res);
      return matched(NO_BODY);
    }
    return takeBody(req, res, limits).then((body) => body && matched(body));
  };
}

const NO_BODY = Buffer.alloc(0);

/** The body, or undefined after an answer. */
async function takeBody(
  req: IncomingMessage,
  res: ServerResponse,
  limits: BodyLimits,
): Promise<Buffer | undefined> {
  const read = declaredTooLarge(req, limits.bodyBytes)
    ? { kind: 'too_large' as const }
    : await invited(req, res, limits);
  if (read.kind === 'body') return read.body;
  if (read.kind === 'too_large') {
    refuse(req, res, problem('body_too_large', `The request body is larger than ${limits.bodyBytes} bytes.`));
  }
  if (read.kind === 'timeout') {
    refuse(
      req,
      res,
      problem('request_timeout', `The request body did not arrive within ${limits.bodyTimeoutMs} ms.`),
    );
  }
  return undefined;
}

function invited(req: IncomingMessage, res: ServerResponse, limits: BodyLimits) {
  inviteBody(req, res);
  return readBody(req, limits.bodyBytes, limits.bodyTimeoutMs);
}

/** Says `100 Continue` to a merchant who waits for it; not before the request was let in. */
export function inviteBody(req: IncomingMessage, res: ServerResponse): void {
  const waits = req.headers.expect !== undefined && req.httpVersion !== '1.0';
  if (waits && !res.headersSent && !res.destroyed) res.writeContinue();
}
