import { match as compile } from 'path-to-regexp';
import type { Identity, Operation } from '../lib/context.ts';
import { literalOf, type MatchOptions, matcherOf } from './match-options.ts';
import type { Where } from './members.ts';
import { lookalikesOf, patternReadings, withFormatless, withoutFileName } from './target.ts';

/** An operation with the requests that it matches. */
export interface DeclaredOperation extends Operation {
  readonly match: MatchOptions;
}

/** A declared operation, prepared for matching. */
export interface Candidate {
  readonly operation: Operation;
  readonly methods: readonly string[];
  /** The path as the configuration has it. */
  readonly path: string;
  /** If empty, methods and path decide alone. */
  readonly where: Where;
  /** Index in the configuration. */
  readonly position: number;
  /** The identities of its requests, protected and not. Made once, so that no request allocates one. */
  readonly identities: { protected: Identity; unprotected: Identity };
}

interface Pattern {
  readonly candidate: Candidate;
  readonly exact: (path: string) => unknown;
  /** Ignores letter case. */
  readonly lenient: (path: string) => unknown;
  /** Finds the lookalikes of a pattern with a file name. */
  readonly unnamed: ((path: string) => unknown) | undefined;
}

const NONE: readonly Candidate[] = [];

/** Finds declared operations by the path of a request. Its results have the order of the configuration. */
export class DeclaredPaths {
  readonly #byPath = new Map<string, Candidate[]>();
  /** The candidates by every lookalike of their path. */
  readonly #byLookalike = new Map<string, Candidate[]>();
  readonly #patterns: Pattern[] = [];

  constructor(declared: readonly DeclaredOperation[]) {
    for (const [position, operation] of declared.entries()) {
      const { path, methods, where } = operation.match;
      const identities = identitiesOf(operation, path);
      const candidate = { operation, methods, path, where: Object.entries(where), position, identities };
      const literal = literalOf(path);
      if (literal === undefined) {
        const lenient = compile(path, { decode: false });
        this.#patterns.push({ candidate, exact: matcherOf(path), lenient, unnamed: unnamedMatcherOf(path) });
      } else {
        append(this.#byPath, literal, candidate);
        for (const lookalike of new Set(lookalikesOf(literal)))
          append(this.#byLookalike, lookalike, candidate);
      }
    }
  }

  /** Whether a declaration without parameters means exactly this path. */
  hasLiteral(path: string): boolean {
    return this.#byPath.has(path);
  }

  /** Operations that declare exactly this path, or a pattern that matches it. */
  exactly(path: string): readonly Candidate[] {
    const literal = this.#byPath.get(path) ?? NONE;
    if (this.#patterns.length === 0) return literal;
    const matching = this.#patterns.filter(({ exact }) => exact(path)).map(({ candidate }) => candidate);
    return matching.length === 0 ? literal : inOrder([...literal, ...matching]);
  }

  /**
   * Operations whose path a lenient backend could take this one for.
   *
   * @param isOfRequest false for a declared path, whose end is a part of its name and no format
   */
  resembling(path: string, isOfRequest = true): readonly Candidate[] {
    const found = new Set<Candidate>();
    const lookalikes = isOfRequest ? withFormatless(lookalikesOf(path)) : lookalikesOf(path);
    for (const lookalike of lookalikes)
      for (const candidate of this.#byLookalike.get(lookalike) ?? NONE) found.add(candidate);
    if (this.#patterns.length > 0) {
      const readings = isOfRequest ? withFormatless(patternReadings(path)) : patternReadings(path);
      for (const { candidate, lenient, unnamed } of this.#patterns)
        if (
          readings.some((reading) => lenient(reading)) ||
          (unnamed && lookalikes.some((one) => unnamed(one)))
        )
          found.add(candidate);
    }
    return found.size === 0 ? NONE : inOrder([...found]);
  }
}

/** Of the pattern without its file name. Undefined if it has none, or if its file name is in an optional part. */
function unnamedMatcherOf(pattern: string): Pattern['unnamed'] {
  const lower = pattern.toLowerCase();
  const unnamed = withoutFileName(lower);
  if (unnamed === lower) return undefined;
  try {
    return compile(unnamed, { decode: false });
  } catch {
    return undefined;
  }
}

function identitiesOf(operation: Operation, route: string): Candidate['identities'] {
  const common = { operation, scopes: [operation.name], isDeclared: true, route };
  return {
    protected: { ...common, isProtected: true, keyRequired: operation.idempotency.key === 'required' },
    unprotected: { ...common, isProtected: false, keyRequired: false },
  };
}

const inOrder = (candidates: Candidate[]): Candidate[] => candidates.sort((a, b) => a.position - b.position);

function append<K, V>(map: Map<K, V[]>, key: K, value: V): void {
  const known = map.get(key);
  if (known) known.push(value);
  else map.set(key, [value]);
}
