import { contextOf, type Identity, type Merchant, type Middleware } from '../kernel/context.ts';
import { type Problem, problem } from '../kernel/problem.ts';
import { challenge } from './authorization-header.ts';

/** The older name of the scope `undeclared`, still accepted. */
const OLDER_NAME = 'passthrough';

/**
 * Refuses with 403 unless the secret key has all scopes that the request needs. Must follow `authenticate` and `identify`.
 *
 * @throws Error if one of them has not run
 */
export function authorise({ realm }: { realm: string }): Middleware {
  return (req, _res, next) => {
    const { merchant, identity } = contextOf(req);
    if (!merchant || !identity) throw new Error('authenticate and identify must come before authorise');
    next(refusalOf(merchant, identity, realm));
  };
}

function refusalOf({ scopes }: Merchant, identity: Identity, realm: string): Problem | undefined {
  if (scopes.includes('*')) return undefined;
  const refuse = (detail: string, scope?: string) => {
    const headers = challenge(realm, { error: 'insufficient_scope', ...(scope !== undefined && { scope }) });
    return problem('insufficient_scope', detail, { headers });
  };
  if (identity.unclear !== undefined)
    return refuse(
      `The secret key may call only some operations, and it is unclear which operation this request is: ${identity.unclear}.`,
    );
  const missing = identity.scopes.find((scope) => !mayCall(scopes, scope));
  return missing === undefined ? undefined : refuse(`The secret key lacks the scope "${missing}".`, missing);
}

const mayCall = (scopes: readonly string[], scope: string): boolean =>
  scopes.includes(scope) || (scope === 'undeclared' && scopes.includes(OLDER_NAME));
