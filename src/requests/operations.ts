import type { IncomingMessage } from 'node:http';
import {
  contextOf,
  type Identity,
  type Middleware,
  type Operation,
  type OperationIdempotency,
} from '../lib/context.ts';
import { problem } from '../lib/problem.ts';
import { type BodyLimits, type Taken, takeBody } from './body.ts';
import { type Candidate, type DeclaredOperation, DeclaredPaths } from './declared-paths.ts';
import { identificationOf } from './match-options.ts';
import {
  type Members,
  mayHaveMembers,
  membersOf,
  overrideInBody,
  overridesMethod,
  selects,
} from './members.ts';
import { isSafe, pathOf, queryOf } from './target.ts';

/**
 * Puts the identity of a request into its context, or refuses it with 404 under `undeclared: refuse`. Reads the body only
 * if the operation depends on it.
 */
export function identify(operations: Operations, limits: BodyLimits): Middleware {
  return (req, res, next) => {
    const context = contextOf(req);
    const head = operations.matchHead(req, context.merchant?.scopes);
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
  /** Operations that declare its path. Also those whose path it resembles, unless it is literally a declared path. */
  readonly onPath: readonly Candidate[];
  /**
   * Operations that declare its exact path and its method. The request is the first of these whose `where` matches. None if
   * the path also resembles another declared one.
   */
  readonly candidates: readonly Candidate[];
  /** A header may override the method or the path. */
  readonly isOverridden: boolean;
  /** The declared path, as in the configuration. */
  readonly route: string | undefined;
  /** Whether the operation, or what a restricted secret key may do, depends on the body. */
  readonly readsBody: boolean;
  /** Whether a `_method` in the body would let a restricted secret key do more than it may. */
  readonly searchesBody: boolean;
}

/** Headers with which frameworks and servers replace the method or the path of the request line. */
export const OVERRIDES: readonly string[] = [
  'x-http-method-override',
  'x-http-method',
  'x-method-override',
  'x-original-url',
  'x-rewrite-url',
];

/** The scopes of a secret key that may call everything. */
const ANY: readonly string[] = ['*'];
const NO_CANDIDATES: readonly Candidate[] = [];
const NO_MEMBERS: Members = { kind: 'members', members: [] };

/** Decides which operation a request is, and whether an idempotency key protects it. */
export class Operations {
  readonly #paths: DeclaredPaths;
  readonly #policy: OperationIdempotency;
  /** `other`, for a request whose method or path may be overridden: it may be any declared operation. */
  readonly #overridden: Other;
  readonly #undeclared: { unsafe: Identity; safe: Identity };
  readonly #refusesUndeclared: boolean;
  readonly #earlier: readonly Operations[];

  constructor(
    declared: readonly DeclaredOperation[],
    { idempotency, undeclared, earlier = [] }: OperationsOptions,
  ) {
    const isRefused = undeclared === 'refuse';
    this.#paths = new DeclaredPaths(declared);
    this.#policy = idempotency;
    this.#overridden = otherFor(declared, idempotency);
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

  /**
   * `req.url` must not be ambiguous: see `ambiguityOf`.
   *
   * @param scopes those of the secret key
   */
  matchHead(req: IncomingMessage, scopes: readonly string[] = ANY): HeadMatch {
    const head = this.#matchHead(req, scopes);
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

  #matchHead(req: IncomingMessage, scopes = ANY): HeadMatch {
    const { method = '' } = req;
    const path = pathOf(req.url ?? '');
    const isOverridden = OVERRIDES.some((name) => req.headers[name] !== undefined);
    const exact = this.#paths.exactly(path);
    // A pattern also matches what a lenient backend takes for another declared path: /v1/payments/:id, and /v1/payments/Batch.
    const others = this.#paths.hasLiteral(path)
      ? NO_CANDIDATES
      : this.#paths.resembling(path).filter((candidate) => !exact.includes(candidate));
    const onPath = others.length === 0 ? exact : [...exact, ...others];
    const candidates =
      others.length === 0 ? exact.filter(({ methods }) => methods.includes(method)) : NO_CANDIDATES;
    const [first] = candidates;
    // A `_method` in the body widens what the secret key may do, if the method decides and the key has the scopes for this method.
    const isByMethod = first ? first.where.length === 0 : onPath.length > 0 && isOnEveryPath(method, onPath);
    const mayCall = (first ? [first] : onPath).every(({ operation }) => scopes.includes(operation.name));
    const searchesBody =
      isByMethod &&
      mayCall &&
      !scopes.includes('*') &&
      !isSafe(method) &&
      !isOverridden &&
      mayHaveMembers(req);
    // An unsafe method that the path does not declare needs the scopes of all its operations, whatever the body says.
    const isByMembers = (first || isSafe(method)) && onPath.some(({ where }) => where.length > 0);
    const readsBody = searchesBody || (!isOverridden && isByMembers);
    return { onPath, candidates, isOverridden, route: exact[0]?.path, readsBody, searchesBody };
  }

  #identify(head: HeadMatch, req: IncomingMessage, body: Buffer | undefined): Identity {
    const { onPath, candidates, isOverridden, route } = head;
    const keyRequired = onPath.some(({ operation }) => operation.idempotency.key === 'required');
    if (isOverridden) {
      const unclear = 'a header may override its method or its path';
      return {
        ...{ ...this.#overridden, unclear, isProtected: true, keyRequired },
        isRefused: this.#refusesUndeclared,
      };
    }
    if (onPath.length === 0) return isSafe(req.method) ? this.#undeclared.safe : this.#undeclared.unsafe;
    const [first] = candidates;
    const query = queryOf(req.url ?? '');
    if (!first || first.where.length === 0) {
      const unclear = overrideOf(head, req, query, body);
      const isRefused = !first && this.#refusesUndeclared;
      if (unclear !== undefined)
        return { ...this.#otherOf(onPath), unclear, isProtected: true, keyRequired, isRefused };
    }
    const isByMembers = onPath.some(({ where }) => where.length > 0);
    if (first && !isByMembers) return identityOf(first, !isSafe(req.method));
    const members = head.readsBody && isByMembers ? membersOf(req, query, body) : NO_MEMBERS;
    const isProtected = !isSafe(req.method) || couldSelect(onPath, members);
    if (candidates.length === 0)
      return this.#resemblingIdentity(req.method ?? '', onPath, isProtected, keyRequired);
    const other = (): Identity => ({
      ...{ ...this.#otherOf(onPath), isProtected, keyRequired: false },
      ...(route !== undefined && { route }),
    });
    const unclear = (reason: string): Identity => ({
      ...other(),
      keyRequired: keyRequired && isProtected,
      unclear: reason,
    });
    if (members.kind === 'unclear') return unclear(members.reason);
    // A backend that ignores methods may execute an operation of another method, unless the request selects one of its own method.
    const hidden = onPath.find((one) => !candidates.includes(one) && maySelect(one, members));
    for (const candidate of candidates) {
      const answer = selects(members.members, candidate.where);
      if (answer === 'yes' && (!hidden || candidate.where.length > 0))
        return identityOf(candidate, isProtected);
      if (answer === 'unclear') return unclear(`it may or may not be ${candidate.operation.name}`);
    }
    if (hidden) return unclear(`an old backend may take it for ${hidden.operation.name}`);
    return other();
  }

  #otherOf(onPath: readonly Candidate[]): Other {
    const operations = onPath.map(({ operation }) => operation);
    return otherFor(operations, this.#policy);
  }

  /** A declared path with another method, or a path that a lenient backend could take for a declared one. */
  #resemblingIdentity(
    method: string,
    onPath: readonly Candidate[],
    isProtected: boolean,
    keyRequired: boolean,
  ): Identity {
    const names = onPath.map(({ operation }) => operation.name);
    return {
      ...this.#otherOf(onPath),
      // With the name of an operation that reads, a secret key must not send other methods to its path: they need `undeclared` too.
      scopes: isOnEveryPath(method, onPath) ? names : [...names, 'undeclared'],
      isProtected,
      keyRequired: keyRequired && isProtected,
      isRefused: this.#refusesUndeclared,
    };
  }
}

/** The operations of each configuration that was in force in this process. */
export class OperationsHistory {
  readonly #options: Omit<OperationsOptions, 'earlier'>;
  readonly #versions = new Map<string, Operations>();

  constructor(options: Omit<OperationsOptions, 'earlier'>) {
    this.#options = options;
  }

  /** Operations that protect every request which an earlier version protected: see {@link OperationsOptions.earlier}. */
  next(declared: readonly DeclaredOperation[]): Operations {
    const identification = identificationOf(declared);
    const earlier = [...this.#versions].flatMap(([other, operations]) =>
      other === identification ? [] : [operations],
    );
    const operations = new Operations(declared, { ...this.#options, earlier });
    this.#versions.set(identification, operations);
    return operations;
  }
}

type Other = Pick<Identity, 'operation' | 'scopes' | 'isDeclared'>;

/**
 * The operation `other`, for a request that may be any of the possible ones. A status frees its key only if all policies say so, and leaves
 * the key in doubt if one does. Operations that take no key have no say.
 */
function otherFor(possible: readonly Operation[], policy: OperationIdempotency): Other {
  const policies = possible.map(({ idempotency }) => idempotency).filter(({ key }) => key !== 'none');
  const release = policy.release.filter((status) => policies.every((one) => one.release.includes(status)));
  const unknown = [...new Set([policy, ...policies].flatMap((one) => one.unknown))];
  const idempotency = { ...policy, release, unknown };
  return { operation: { name: 'other', idempotency }, scopes: ['other'], isDeclared: false };
}

/** Why a member may override the method. */
function overrideOf(
  { searchesBody }: HeadMatch,
  req: IncomingMessage,
  query: string,
  body: Buffer | undefined,
): string | undefined {
  if (overridesMethod(req, query)) return 'a member of its query or a cookie may override the method';
  return searchesBody ? overrideInBody(req, body) : undefined;
}

/** Whether each of the paths declares the method. */
const isOnEveryPath = (method: string, onPath: readonly Candidate[]): boolean =>
  onPath.every(({ path }) => onPath.some((other) => other.path === path && other.methods.includes(method)));

const takesKey = ({ operation }: Candidate): boolean => operation.idempotency.key !== 'none';

const identityOf = (candidate: Candidate, isProtected: boolean): Identity =>
  isProtected && takesKey(candidate) ? candidate.identities.protected : candidate.identities.unprotected;

/**
 * Whether a safe method may select an operation that takes a key. Legacy backends execute `GET …?action=withdraw`, so such
 * a request is protected.
 */
function couldSelect(onPath: readonly Candidate[], members: Members): boolean {
  return onPath.some((candidate) => takesKey(candidate) && maySelect(candidate, members));
}

function maySelect({ where }: Candidate, members: Members): boolean {
  if (where.length === 0) return false;
  return members.kind === 'unclear' || selects(members.members, where) !== 'no';
}
