import type { IncomingMessage, ServerResponse } from 'node:http';
import type { RequestContext } from '../kernel/context.ts';
import type { Lifecycle } from '../kernel/lifecycle.ts';
import { type Problem, problem, sendProblem } from '../kernel/problem.ts';
import type { Step } from '../kernel/step.ts';

/** What decides whether there is room. */
export interface Admission {
  /** Requests that are being answered, this one included. */
  open(): number;
  maxInFlight: number;
  lifecycle: Lifecycle;
}

export interface AdmitOptions extends Admission {
  /** Begins a request's context; see Access.begin. */
  begin(req: IncomingMessage, closes: ServerResponse): RequestContext;
}

/** Why nothing new is taken at this moment, or undefined. */
export function refusalToAdmit({ open, maxInFlight, lifecycle }: Admission): Problem | undefined {
  const again = { retryAfterS: 1 };
  if (lifecycle.closing) return problem('shutting_down', 'The request was not sent; ask again.', again);
  if (open() > maxInFlight) return problem('overloaded', 'The request was not sent; ask again.', again);
  return undefined;
}

/** Step 1 of the request's path: its context, and whether there is room for it. */
export function admit(options: AdmitOptions): Step {
  return (req, res, next) => {
    const context = options.begin(req, res);
    // The merchant's client shall not send its next request on a connection that is about to end.
    if (options.lifecycle.draining) res.shouldKeepAlive = false;
    const refusal = refusalToAdmit(options);
    if (!refusal) return next();
    context.outcome = refusal.code;
    sendProblem(res, refusal, context.requestId);
  };
}
