import { contextOf, type Merchant, type RequestContext } from '../kernel/context.ts';
import { type Problem, problem, sendProblem } from '../kernel/problem.ts';
import type { Step } from '../kernel/step.ts';
import { challenge } from './challenge.ts';

/** The scope for everything that is no declared operation and goes through unread. */
export const PASSTHROUGH_SCOPE = 'passthrough';

/** The scope that a request needs: its operation's name. */
export function neededScope({ operation }: Pick<RequestContext, 'operation'>): string {
  return operation?.name ?? PASSTHROUGH_SCOPE;
}

/** Do the secret key's scopes allow this operation? */
export function mayCall(merchant: Pick<Merchant, 'scopes'>, operationName: string): boolean {
  return merchant.scopes.includes('*') || merchant.scopes.includes(operationName);
}

/** The answer to a key whose scopes do not reach. */
export function insufficientScope(needed: string, realm: string): Problem {
  const headers = challenge(realm, { error: 'insufficient_scope', scope: needed });
  return problem('insufficient_scope', `The secret key lacks the scope "${needed}".`, { headers });
}

/** A step, behind authentication and matching: lets through what the key may call, and answers 403 to the rest. */
export function authorise(options: { realm: string }): Step {
  return (req, res, next) => {
    const context = contextOf(req);
    const needed = neededScope(context);
    if (!context.merchant)
      throw new Error('the request has no merchant: authenticate() must come before authorise()');
    if (mayCall(context.merchant, needed)) return next();
    const refusal = insufficientScope(needed, options.realm);
    context.outcome = refusal.code;
    sendProblem(res, refusal, context.requestId);
  };
}
