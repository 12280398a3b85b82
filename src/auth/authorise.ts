import { contextOf, type Identity, type Merchant, type Middleware } from '../kernel/context.ts';
import { type Problem, problem } from '../kernel/problem.ts';
import { challenge } from './challenge.ts';

/** The older name of the scope `undeclared`. */
const OLDER_NAME = 'passthrough';

/** Passes what the secret key may call, and refuses the rest with 403. */
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
      `The secret key may call some operations only, and it is unclear which one this is: ${identity.unclear}.`,
    );
  const lacking = identity.scopes.find((scope) => !mayCall(scopes, scope));
  return lacking === undefined ? undefined : refuse(`The secret key lacks the scope "${lacking}".`, lacking);
}

const mayCall = (scopes: readonly string[], scope: string): boolean =>
  scopes.includes(scope) || (scope === 'undeclared' && scopes.includes(OLDER_NAME));
