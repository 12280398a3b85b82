import type { IncomingMessage } from 'node:http';
import { match as compile, parse } from 'path-to-regexp';
import type { Identity, Operation, OperationIdempotency } from '../kernel/context.ts';
import { type Members, membersOf, overridesMethod, selects, type Where } from './members.ts';
import type { MatchOptions } from './options.ts';
import { lookalikesOf, pathOf, tidyReadings } from './target.ts';

/** An operation with what it matches. */
export interface DeclaredOperation extends Operation {
  readonly match: MatchOptions;
}

export interface OperationsOptions {
  /** How the reserved operations `other` and `undeclared` treat a key. */
  readonly idempotency: OperationIdempotency;
  /** What becomes of requests on a path that no operation declares. */
  readonly undeclared: 'protect' | 'pass' | 'refuse';
}

/** A declared operation, prepared. */
interface Candidate {
  readonly operation: Operation;
  readonly methods: readonly string[];
  /** As the configuration spells it. */
  readonly path: string;
  /** Names and values; empty: its path and its methods decide. */
  readonly where: Where;
  /** Its place in the configuration. */
  readonly place: number;
  /** Of a request that it is, protected or not. */
  readonly identities: { protected: Identity; unprotected: Identity };
}

/** What the head of a request says. */
export interface Head {
  /** Operations on the path, or on the path that it resembles. */
  readonly onPath: readonly Candidate[];
  /** Those of them that the method and the exact path name; their `where` decides. */
  readonly candidates: readonly Candidate[];
  /** A header may override the method or the path. */
  readonly isOverridden: boolean;
  /** The declared path, as the configuration spells it. */
  readonly route: string | undefined;
  /** Whether the operation depends on the body. */
  readonly readsBody: boolean;
}

interface Pattern {
  readonly candidate: Candidate;
  readonly exact: (path: string) => unknown;
  /** With the letter case ignored. */
  readonly lenient: (path: string) => unknown;
}

const SAFE_METHODS = new Set(['GET', 'HEAD', 'OPTIONS', 'TRACE']);

export const isSafe = (method: string | undefined): boolean => SAFE_METHODS.has(method ?? '');

/** Frameworks and servers that honour these run another method, or another path, than the request line names. */
const OVERRIDES = [
  'x-http-method-override',
  'x-http-method',
  'x-method-override',
  'x-original-url',
  'x-rewrite-url',
];

const NOTHING: readonly Candidate[] = [];

/** Finds the operation of a request. */
export class Operations {
  /** By exact path, in the order of the configuration. */
  readonly #byPath = new Map<string, Candidate[]>();
  /** By each reading that lenient backends have of a declared path. */
  readonly #byReading = new Map<string, Candidate[]>();
  readonly #patterns: Pattern[] = [];
  readonly #other: Pick<Identity, 'operation' | 'scopes' | 'isDeclared'>;
  readonly #undeclared: { unsafe: Identity; safe: Identity };
  readonly #refusesUndeclared: boolean;

  constructor(declared: readonly DeclaredOperation[], { idempotency, undeclared }: OperationsOptions) {
    const isRefused = undeclared === 'refuse';
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
    for (const [place, operation] of declared.entries()) {
      const { path, methods, where } = operation.match;
      const identities = identitiesOf(operation, path);
      const candidate = { operation, methods, path, where: Object.entries(where), place, identities };
      const literal = literalOf(path);
      if (literal === undefined) {
        const exact = compile(path, { decode: false, sensitive: true, trailing: false });
        const lenient = compile(path, { decode: false });
        this.#patterns.push({ candidate, exact, lenient });
      } else {
        append(this.#byPath, literal, candidate);
        for (const reading of new Set(lookalikesOf(literal))) append(this.#byReading, reading, candidate);
      }
    }
  }

  /** `req.url` must have passed the target check. */
  byHead(req: IncomingMessage): Head {
    const path = pathOf(req.url ?? '');
    const isOverridden = OVERRIDES.some((name) => req.headers[name] !== undefined);
    const exact = this.#exactly(path);
    const onPath = exact.length > 0 ? exact : this.#resembling(path);
    const candidates =
      exact.length > 0 ? exact.filter(({ methods }) => methods.includes(req.method ?? '')) : NOTHING;
    // A safe method may select an operation that is declared with another one.
    const decisive = isSafe(req.method) ? onPath : candidates;
    const readsBody = !isOverridden && decisive.some(({ where }) => where.length > 0);
    return { onPath, candidates, isOverridden, route: exact[0]?.path, readsBody };
  }

  /** @param body undefined if it was not needed, or too large to be read */
  identify(head: Head, req: IncomingMessage, body: Buffer | undefined): Identity {
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
    if (candidates.length === 0) return this.#identityOfResembling(onPath, isProtected, keyRequired);
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
        return { ...unclear, unclear: `it may be ${candidate.operation.name}, or may not` };
    }
    return other;
  }

  /** Another method on a declared path, or a path that some backends take for a declared one. */
  #identityOfResembling(onPath: readonly Candidate[], isProtected: boolean, keyRequired: boolean): Identity {
    return {
      ...this.#other,
      scopes: onPath.map(({ operation }) => operation.name),
      isProtected,
      keyRequired: keyRequired && isProtected,
      isRefused: this.#refusesUndeclared,
    };
  }

  #exactly(path: string): readonly Candidate[] {
    const literal = this.#byPath.get(path) ?? NOTHING;
    if (this.#patterns.length === 0) return literal;
    const matching = this.#patterns.filter(({ exact }) => exact(path)).map(({ candidate }) => candidate);
    return matching.length === 0 ? literal : inOrder([...literal, ...matching]);
  }

  #resembling(path: string): readonly Candidate[] {
    const found = new Set<Candidate>();
    for (const reading of lookalikesOf(path))
      for (const candidate of this.#byReading.get(reading) ?? NOTHING) found.add(candidate);
    if (this.#patterns.length > 0) {
      const readings = tidyReadings(path);
      for (const { candidate, lenient } of this.#patterns)
        if (readings.some((reading) => lenient(reading))) found.add(candidate);
    }
    return found.size === 0 ? NOTHING : inOrder([...found]);
  }
}

const NO_MEMBERS: Members = { kind: 'members', members: [] };

const takesKey = ({ idempotency }: Operation): boolean => idempotency.key !== 'none';

function identitiesOf(operation: Operation, route: string): Candidate['identities'] {
  const common = { operation, scopes: [operation.name], isDeclared: true, route };
  return {
    protected: { ...common, isProtected: true, keyRequired: operation.idempotency.key === 'required' },
    unprotected: { ...common, isProtected: false, keyRequired: false },
  };
}

const identityOf = ({ operation, identities }: Candidate, isProtected: boolean): Identity =>
  isProtected && takesKey(operation) ? identities.protected : identities.unprotected;

/** Legacy backends execute `GET …?action=withdraw`: whether a safe method may select an operation that takes a key. */
function couldSelect(onPath: readonly Candidate[], members: Members): boolean {
  return onPath.some(({ operation, where }) => {
    if (!takesKey(operation) || where.length === 0) return false;
    return members.kind === 'unclear' || selects(members.members, where) !== 'no';
  });
}

const inOrder = (candidates: Candidate[]): Candidate[] => candidates.sort((a, b) => a.place - b.place);

/** The path without the escapes of a pattern. Undefined: it is a pattern. */
function literalOf(path: string): string | undefined {
  const { tokens } = parse(path);
  return tokens.every((token) => token.type === 'text')
    ? tokens.map(({ value }) => value).join('')
    : undefined;
}

function queryOf(target: string): string {
  const at = target.indexOf('?');
  return at < 0 ? '' : target.slice(at + 1);
}

function append<K, V>(map: Map<K, V[]>, key: K, value: V): void {
  const known = map.get(key);
  if (known) known.push(value);
  else map.set(key, [value]);
}
