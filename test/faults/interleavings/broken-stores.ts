// @ts-nocheck until the rules are the reference of this suite
import type { Execution } from '../../../src/store/contract.ts';
import type { Reference } from '../model/reference.ts';
import type { Setup } from './setup.ts';

/** Makes the caller the owner of the scope, whatever the store holds. */
function seize(reference: Reference, execution: Execution): 'started' {
  const record = reference.at(execution.scope);
  if (record) reference.release({ ...execution, token: record.token });
  reference.start(execution);
  return 'started';
}

/** Mistakes that a store or a gateway could have, and setups in which each of them breaks the promise. */
export const mistakes: [what: string, setup: Partial<Setup>][] = [
  [
    'a store whose start looks first and writes later',
    { broken: { start: (reference, execution, seen) => (seen ? undefined : seize(reference, execution)) } },
  ],
  [
    'a store whose start takes over an execution whose lease has lapsed',
    {
      lapses: 1,
      broken: {
        start: (reference, execution) => {
          const record = reference.at(execution.scope);
          const lapsed = record?.state === 'executing' && !reference.isAlive(record);
          return lapsed ? seize(reference, execution) : undefined;
        },
      },
    },
  ],
  [
    'a store whose restart does not look at the state',
    {
      ...{ requests: 3, inDoubt: 'retry' },
      broken: {
        restart: (reference, execution) => {
          const record = reference.at(execution.scope);
          if (record) reference.markInDoubt({ ...execution, token: record.token });
          reference.restart(execution);
          return 'ok';
        },
      },
    },
  ],
  [
    'a store whose complete does not look at the token',
    {
      ...{ inDoubt: 'retry', lapses: 1 },
      broken: {
        complete: (reference, execution, completion) => {
          const { token } = reference.at(execution.scope) ?? execution;
          reference.complete({ ...execution, token }, completion);
          return 'ok';
        },
      },
    },
  ],
  [
    'a store whose release ignores that a token is to be voided',
    { lostCommands: 1, broken: { release: () => ({ voidToken: false }) } },
  ],
  [
    'a store that lets an operator resolve the key of a living owner',
    {
      resolutions: 1,
      broken: {
        resolve: (reference, owner) => {
          const record = reference.at(owner.scope);
          if (record?.state === 'executing') reference.markInDoubt(owner);
        },
      },
    },
  ],
  ['a gateway without the fence, and an operator', { lapses: 1, resolutions: 1, broken: { noFence: true } }],
  [
    'a gateway without the fence, under inDoubt: retry',
    { inDoubt: 'retry', lapses: 1, broken: { noFence: true } },
  ],
];
