// @ts-nocheck until the rules are the reference of this suite
import {
  type Execution,
  type PeekAnswer,
  type StartAnswer,
  type Store,
  StoreUnavailable,
} from '../../../src/store/contract.ts';
import type { GaveUp, Reference } from '../model/reference.ts';

/** The commands that the engine sends. */
export type Commands = Pick<
  Store,
  'start' | 'peek' | 'restart' | 'renew' | 'complete' | 'release' | 'markInDoubt' | 'get'
>;

/** The reference's answer in the terms of the store contract. */
export function answerOf(
  reference: Reference,
  { scope }: Pick<Execution, 'scope'>,
  kind: StartAnswer['kind'] | PeekAnswer['kind'] | GaveUp,
): StartAnswer | PeekAnswer {
  const requestId = reference.at(scope)?.requestId ?? '';
  switch (kind) {
    case 'gave_up':
      throw new StoreUnavailable('the token was given up', { maybeWritten: false });
    case 'completed': {
      const completion = reference.at(scope)?.completion;
      if (completion?.kind !== 'response') throw new Error('a completed record has no response');
      return { kind, response: completion.response, requestId };
    }
    case 'in_doubt':
      // All requests of the search belong to one operation.
      return { kind, sinceMs: 0, operation: 'withdraw', requestId };
    case 'tombstone':
      return { kind, requestId };
    default:
      return { kind };
  }
}

export const startOn = (reference: Reference, execution: Execution): StartAnswer =>
  answerOf(reference, execution, reference.start(execution)) as StartAnswer;

export const peekOn = (reference: Reference, request: Pick<Execution, 'scope' | 'fingerprint'>): PeekAnswer =>
  answerOf(reference, request, reference.peek(request)) as PeekAnswer;

export function restartOn(reference: Reference, execution: Execution): 'ok' | 'changed' {
  const answer = reference.restart(execution);
  if (answer === 'gave_up') throw new StoreUnavailable('the token was given up', { maybeWritten: false });
  return answer;
}

/** The reference as a store that answers at once. */
export function storeOn(reference: Reference): Commands {
  return {
    start: async (execution) => startOn(reference, execution),
    peek: async (request) => peekOn(reference, request),
    restart: async (execution) => restartOn(reference, execution),
    renew: async (owner) => reference.renew(owner),
    complete: async (execution, completion) => reference.complete(execution, completion),
    release: async (owner, options) => reference.release(owner, options),
    markInDoubt: async (owner, options) => reference.markInDoubt(owner, options),
    get: async () => undefined,
  };
}
