import type { Operation, OperationIdempotency } from '../kernel/context.ts';
import { readJsonObject } from './json-object.ts';
import type { MatchOptions } from './options.ts';
import { lookalikesOf, pathOf } from './target.ts';

/** An operation with what it matches. */
export interface DeclaredOperation extends Operation {
  readonly match: MatchOptions;
}

/** What the head of a request says: an operation, or what its body must still decide, or nothing of ours. */
export type HeadMatch =
  | { kind: 'operation'; operation: Operation }
  | { kind: 'by_body'; candidates: readonly DeclaredOperation[] }
  | { kind: 'lookalike'; path: string }
  /** A declared path under a method that is not, though the path's body selects operations. */
  | { kind: 'other_method' }
  | { kind: 'none' };

export type BodyMatch = { kind: 'operation'; operation: Operation } | { kind: 'ambiguous'; reason: string };

const noKey: OperationIdempotency = { key: 'none', inDoubt: 'hold', waitMs: 0, release: [], unknown: [] };

/** A readable body on a declared route that names no declared operation. */
export const otherOperation: Operation = { name: 'other', idempotency: noKey };

/** Finds the declared operation of a request. */
export class Operations {
  readonly #routes = new Map<string, DeclaredOperation[]>();
  readonly #paths = new Map<string, string>();
  /** Paths at which a body selects the operation. */
  readonly #selecting = new Set<string>();

  constructor(declared: readonly DeclaredOperation[]) {
    for (const operation of declared) {
      const { method, path } = operation.match;
      const route = `${method} ${path}`;
      this.#routes.set(route, [...(this.#routes.get(route) ?? []), operation]);
      for (const reading of lookalikesOf(path)) this.#paths.set(reading, path);
      if (operation.match.body) this.#selecting.add(path);
    }
  }

  /** `target` must have passed the target check. */
  byHead(method: string, target: string): HeadMatch {
    const path = pathOf(target);
    const candidates = this.#routes.get(`${method} ${path}`);
    const [only] = candidates ?? [];
    if (candidates && only) {
      return only.match.body ? { kind: 'by_body', candidates } : { kind: 'operation', operation: only };
    }
    if (this.#selecting.has(path)) return { kind: 'other_method' };
    const readings = lookalikesOf(path).map((reading) => this.#paths.get(reading));
    const declared = readings.find((found) => found !== undefined && found !== path);
    return declared === undefined ? { kind: 'none' } : { kind: 'lookalike', path: declared };
  }

  byBody(candidates: readonly DeclaredOperation[], body: Buffer): BodyMatch {
    const read = readJsonObject(body);
    if ('ambiguous' in read) {
      const passes = candidates.some(({ match }) => match.unreadableBody === 'pass');
      return passes
        ? { kind: 'operation', operation: otherOperation }
        : { kind: 'ambiguous', reason: read.ambiguous };
    }
    for (const operation of candidates) {
      const reading = matchMember(read.members, operation);
      if (reading === 'yes') return { kind: 'operation', operation };
      if (reading !== 'no') return { kind: 'ambiguous', reason: reading };
    }
    return { kind: 'operation', operation: otherOperation };
  }
}

/**
 * Does the body's member select the operation? Anything but a clear yes or no is ambiguous: loosely typed backends take
 * `true` or `0` for any string, others ignore the case of names or trim values.
 */
function matchMember(
  members: Record<string, unknown>,
  { match }: DeclaredOperation,
): 'yes' | 'no' | (string & {}) {
  const [[name, wanted] = ['', '']] = Object.entries(match.body ?? {});
  const spelt = Object.keys(members).filter((member) => readsAs(member, name));
  if (spelt.length === 0) return 'no';
  if (spelt.length > 1 || spelt[0] !== name) return `the member ${name} must be spelt so, and stand once`;
  const value = members[name];
  if (typeof value !== 'string') return `the member ${name} must be a string`;
  if (value === wanted) return 'yes';
  return readsAs(value, wanted) ? `the member ${name} must be exactly "${wanted}"` : 'no';
}

const PLAIN = /^[\x21-\x7e]*$/;

/** Do lenient readers take a text for this word: without case and surrounding space and NULs, or in C up to the first NUL? */
function readsAs(text: string, word: string): boolean {
  // As almost every text is: nothing in it that could be left out.
  if (PLAIN.test(text)) return text.toLowerCase() === word.toLowerCase();
  const [upToNul = ''] = text.split('\0', 1);
  const trimmed = text.replaceAll('\0', ' ').trim();
  return [upToNul.trim(), trimmed].some((reading) => reading.toLowerCase() === word.toLowerCase());
}
