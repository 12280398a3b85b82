import type { IncomingMessage } from 'node:http';
import { parse, type Token } from 'path-to-regexp';
import { hasBody, type Identity } from '../lib/context.ts';
import { type Candidate, type DeclaredOperation, DeclaredPaths } from './declared-paths.ts';
import type { PublicPathOptions } from './match-options.ts';
import { overridesMethod } from './members.ts';
import type { Operations } from './operations.ts';
import { pathOf, queryOf } from './target.ts';

/** A key has no merchant here, so it has no effect. */
const NO_KEYS = { key: 'none', inDoubt: 'hold', waitMs: 0, release: [], unknown: [] } as const;

const asDeclared = ({ method, path }: PublicPathOptions): DeclaredOperation => ({
  name: 'undeclared',
  idempotency: NO_KEYS,
  match: { methods: [method].flat(), path, where: {} },
});

/** Finds requests that need no secret key, by the paths of `auth.public`. */
export class PublicPaths {
  readonly #paths: DeclaredPaths;
  readonly #operations: Pick<Operations, 'matchHead'>;

  constructor(paths: readonly PublicPathOptions[], operations: Pick<Operations, 'matchHead'>) {
    this.#paths = new DeclaredPaths(paths.map(asDeclared));
    this.#operations = operations;
  }

  /**
   * The identity of the request, if it needs no secret key. Only the exact path is public, and only if no backend could take the
   * request for one of a declared operation. `req.url` must not be ambiguous.
   */
  identityOf(req: IncomingMessage): Identity | undefined {
    const { method = '', url = '' } = req;
    const found = this.#paths.exactly(pathOf(url)).find(({ methods }) => methods.includes(method));
    if (!found) return undefined;
    const { onPath, isOverridden } = this.#operations.matchHead(req);
    // The backend may take it for a request with another method or path, which is not public.
    if (isOverridden || overridesMethod(req, queryOf(url))) return undefined;
    if (onPath.length > 0 && !isHarmlessPreflight(req, onPath)) return undefined;
    return { ...found.identities.unprotected, isDeclared: false };
  }
}

/**
 * Whether a request on the path of declared operations is a CORS preflight that cannot execute one of them. Browsers send it
 * without credentials and without a body, before the merchant's own request.
 */
function isHarmlessPreflight(req: IncomingMessage, onPath: readonly Candidate[]): boolean {
  const { method, headers, url = '' } = req;
  const isPreflight = headers.origin !== undefined && headers['access-control-request-method'] !== undefined;
  if (method !== 'OPTIONS' || !isPreflight || headers.authorization !== undefined || hasBody(req))
    return false;
  // Old backends execute what a query or a cookie selects, whatever the method is.
  const hasMembers = queryOf(url) !== '' || headers.cookie !== undefined;
  return onPath.every(
    ({ methods, where }) => !methods.includes('OPTIONS') && !(hasMembers && where.length > 0),
  );
}

/**
 * The operations that a public path would open: those that declare a path which the public one matches or resembles. Two
 * patterns are compared by samples of both. {@link PublicPaths} also asks for each request.
 */
export function operationsOpenedBy(
  open: PublicPathOptions,
  operations: readonly DeclaredOperation[],
): string[] {
  const isForPreflights = [open.method].flat().every((method) => method === 'OPTIONS');
  const opened = operations.filter(({ match }) => !isForPreflights || match.methods.includes('OPTIONS'));
  return opened.filter((operation) => overlap(asDeclared(open), operation)).map(({ name }) => name);
}

/** Requests without a secret key have the paths that `open` declares. */
function overlap(open: DeclaredOperation, operation: DeclaredOperation): boolean {
  const { path } = operation.match;
  return reaches(open, samplesOf(path), false) || reaches(operation, samplesOf(open.match.path), true);
}

function reaches(declared: DeclaredOperation, samples: readonly string[], areOfRequests: boolean): boolean {
  const paths = new DeclaredPaths([declared]);
  return samples.some(
    (path) => paths.exactly(path).length > 0 || paths.resembling(path, areOfRequests).length > 0,
  );
}

/** Paths that a pattern matches: without its optional parts, and with them. */
function samplesOf(pattern: string): string[] {
  const { tokens } = parse(pattern);
  return [sampleOf(tokens, false), sampleOf(tokens, true)];
}

function sampleOf(tokens: readonly Token[], withGroups: boolean): string {
  const parts = tokens.map((token) => {
    if (token.type === 'text') return token.value;
    if (token.type === 'group') return withGroups ? sampleOf(token.tokens, true) : '';
    return token.type === 'param' ? 'x' : 'x/x';
  });
  return parts.join('');
}
