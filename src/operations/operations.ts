import type { IncomingMessage } from 'node:http';
import { contextOf, type Identity, type Middleware, type OperationIdempotency } from '../kernel/context.ts';
import { problem } from '../kernel/problem.ts';
import { type BodyLimits, type Taken, takeBody } from './body.ts';
import { type Candidate, type DeclaredOperation, DeclaredPaths } from './declared-paths.ts';
import { type Members, membersOf, overridesMethod, selects } from './members.ts';
import { pathOf, queryOf } from './target.ts';

/**
 * Puts the identity of a request into its context, or refuses it with 404 under `undeclared: refuse`. Reads the body only
 * if the operation depends on it.
 */
export function identify(operations: Operations, limits: BodyLimits): Middleware {
  return (req, res, next) => {
    const context = contextOf(req);
    const head = operations.matchHead(req);
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

export interface OperationsOptions {
  /** How the reserved operations `other` and `undeclared` treat an idempotency key. */
  readonly idempotency: OperationIdempotency;
  /** How requests on paths without a declared operation are treated. */
  readonly undeclared: 'protect' | 'pass' | 'refuse';
  /**
   * Operations that were in force before these, in this process. A key that protected a request under one of them still
   * protects it: otherwise a reload could send a payout again that was executed under that key. Default none.
   */
  readonly earlier?: readonly Operations[];
}

/** What the head of a request says about its operation. */
export interface HeadMatch {
  /** Operations that declare its path or, if there are none, a path that it resembles. */
  readonly onPath: readonly Candidate[];
  /** Operations that declare its exact path and its method. The request is the first of these whose `where` matches. */
  readonly candidates: readonly Candidate[];
  /** A header may override the method or the path. */
  readonly isOverridden: boolean;
  /** The declared path, as in the configuration. */
  readonly route: string | undefined;
  /** Whether the operation depends on the body. */
  readonly readsBody: boolean;
}

const SAFE_METHODS = new Set(['GET', 'HEAD', 'OPTIONS', 'TRACE']);

const isSafe = (method: string | undefined): boolean => SAFE_METHODS.has(method ?? '');

/** Headers with which frameworks and servers replace the method or the path of the request line. */
const OVERRIDES = [
  'x-http-method-override',
  'x-http-method',
  'x-method-override',
  'x-original-url',
  'x-rewrite-url',
];

const NO_CANDIDATES: readonly Candidate[] = [];
const NO_MEMBERS: Members = { kind: 'members', members: [] };

/** Decides which operation a request is, and whether an idempotency key protects it. */
export class Operations {
  readonly #paths: DeclaredPaths;
  readonly #other: Pick<Identity, 'operation' | 'scopes' | 'isDeclared'>;
  readonly #undeclared: { unsafe: Identity; safe: Identity };
  readonly #refusesUndeclared: boolean;
  readonly #earlier: readonly Operations[];

  constructor(
    declared: readonly DeclaredOperation[],
    { idempotency, undeclared, earlier = [] }: OperationsOptions,
  ) {
    const isRefused = undeclared === 'refuse';
    this.#paths = new DeclaredPaths(declared);
    this.#other = { operation: { name: 'other', idempotency }, scopes: ['other'], isDeclared: false };
    const unsafe = {
      ...{
        operation: { name: 'undeclared', idempotency },
        scopes: ['undeclared'],
        isDeclared: false,
        isRefused,
      },
      ...{ isProtected: undeclared !== 'pass', keyRequired: false },
    };
    this.#undeclared = { unsafe, safe: { ...unsafe, isProtected: false } };
    this.#refusesUndeclared = isRefused;
    this.#earlier = earlier;
  }

  /** `req.url` must not be ambiguous: see `ambiguityOf`. */
  matchHead(req: IncomingMessage): HeadMatch {
    const head = this.#matchHead(req);
    const readsBody = head.readsBody || this.#earlier.some((earlier) => earlier.#matchHead(req).readsBody);
    return readsBody === head.readsBody ? head : { ...head, readsBody };
  }

  /** @param body undefined if `readsBody` is false, or if the body was too large to be read */
  identify(head: HeadMatch, req: IncomingMessage, body: Buffer | undefined): Identity {
    const identity = this.#identify(head, req, body);
    const wasProtected =
      !identity.isProtected && this.#earlier.some((earlier) => earlier.#protects(req, body));
    return wasProtected ? { ...identity, isProtected: true } : identity;
  }

  #protects(req: IncomingMessage, body: Buffer | undefined): boolean {
    return this.#identify(this.#matchHead(req), req, body).isProtected;
  }

  #matchHead(req: IncomingMessage): HeadMatch {
    const path = pathOf(req.url ?? '');
    const isOverridden = OVERRIDES.some((name) => req.headers[name] !== undefined);
    const exact = this.#paths.exactly(path);
    const onPath = exact.length > 0 ? exact : this.#paths.resembling(path);
    const candidates =
      exact.length > 0 ? exact.filter(({ methods }) => methods.includes(req.method ?? '')) : NO_CANDIDATES;
    // A safe method can select an operation that is declared with another method.
    const decisive = isSafe(req.method) ? onPath : candidates;
    const readsBody = !isOverridden && decisive.some(({ where }) => where.length > 0);
    return { onPath, candidates, isOverridden, route: exact[0]?.path, readsBody };
  }

  #identify(head: HeadMatch, req: IncomingMessage, body: Buffer | undefined): Identity {
    const { onPath, candidates, isOverridden, route } = head;
    const keyRequired = onPath.some(({ operation }) => operation.idempotency.key === 'required');
    if (isOverridden) {
      const unclear = 'a header may override its method or its path';
      return {
        ...{ ...this.#other, unclear, isProtected: true, keyRequired },
        isRefused: this.#refusesUndeclared,
      };
    }
    if (onPath.length === 0) return isSafe(req.method) ? this.#undeclared.safe : this.#undeclared.unsafe;
    const [first] = candidates;
    const query = queryOf(req.url ?? '');
    if (first && first.where.length === 0) {
      if (isSafe(req.method) || !overridesMethod(query)) return identityOf(first, !isSafe(req.method));
      const unclear = 'a member of its query may override the method';
      return { ...this.#other, unclear, isProtected: true, keyRequired };
    }
    const members = head.readsBody ? membersOf(req, query, body) : NO_MEMBERS;
    const isProtected = !isSafe(req.method) || couldSelect(onPath, members);
    if (candidates.length === 0) return this.#resemblingIdentity(onPath, isProtected, keyRequired);
    const other = {
      ...{ ...this.#other, isProtected, keyRequired: false },
      ...(route !== undefined && { route }),
    };
    const unclear = { ...other, keyRequired: keyRequired && isProtected };
    if (members.kind === 'unclear') return { ...unclear, unclear: members.reason };
    for (const candidate of candidates) {
      const answer = selects(members.members, candidate.where);
      if (answer === 'yes') return identityOf(candidate, isProtected);
      if (answer === 'unclear')
        return { ...unclear, unclear: `it may or may not be ${candidate.operation.name}` };
    }
    return other;
  }

  /** A declared path with another method, or a path that a lenient backend could take for a declared one. */
  #resemblingIdentity(onPath: readonly Candidate[], isProtected: boolean, keyRequired: boolean): Identity {
    return {
      ...this.#other,
      scopes: onPath.map(({ operation }) => operation.name),
      isProtected,
      keyRequired: keyRequired && isProtected,
      isRefused: this.#refusesUndeclared,
    };
  }
}

const takesKey = ({ operation }: Candidate): boolean => operation.idempotency.key !== 'none';

const identityOf = (candidate: Candidate, isProtected: boolean): Identity =>
  isProtected && takesKey(candidate) ? candidate.identities.protected : candidate.identities.unprotected;

/**
 * Whether a safe method may select an operation that takes a key. Legacy backends execute `GET …?action=withdraw`, so such
 * a request is protected.
 */
function couldSelect(onPath: readonly Candidate[], members: Members): boolean {
  return onPath.some((candidate) => {
    if (!takesKey(candidate) || candidate.where.length === 0) return false;
    return members.kind === 'unclear' || selects(members.members, candidate.where) !== 'no';
  });
}
