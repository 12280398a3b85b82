import { contextOf, type Merchant, type Middleware } from '../lib/context.ts';
import { type Problem, problem } from '../lib/problem.ts';
import { challenge } from './authorization-header.ts';

/**
 * Refuses with 403 unless the secret key has all scopes that the request needs. Must follow `authenticate` and `identify`.
 *
 * @throws Error if one of them has not run
 */
export function authorise({ realm }: { realm: string }): Middleware {
  return (req, _res, next) => {
    const { merchant, identity } = contextOf(req);
    if (!merchant || !identity) throw new Error('authenticate and identify must come before authorise');
    if (merchant.scopes.includes('*')) return next();
    if (identity.unclear === undefined) return next(refusalOfScopes(merchant, identity.scopes, realm));
    const detail =
      'The secret key may call only some operations, and it is unclear which operation this request is';
    next(refuse(realm, `${detail}: ${identity.unclear}.`));
  };
}

/** The refusal of a secret key that lacks one of the scopes. */
export function refusalOfScopes(
  { scopes }: Pick<Merchant, 'scopes'>,
  needed: readonly string[],
  realm: string,
): Problem | undefined {
  if (scopes.includes('*')) return undefined;
  const missing = needed.find((scope) => !scopes.includes(scope));
  if (missing === undefined) return undefined;
  return refuse(realm, `The secret key lacks the scope "${missing}".`, missing);
}

function refuse(realm: string, detail: string, scope?: string): Problem {
  const headers = challenge(realm, { error: 'insufficient_scope', ...(scope !== undefined && { scope }) });
  return problem('insufficient_scope', detail, { headers });
}
