import { isAlive } from '../../../src/ledger/rules.ts';
import type { Create, Held, Replace, Seen } from '../../../src/store/register.ts';
import type { Setup } from './setup.ts';

/** Writes over whatever the register holds. */
const over = (write: Create | Replace, held: Seen | undefined): Replace => ({
  ...{ operation: write.record?.operation ?? '', ...write },
  ...{ kind: 'replace', revision: held?.record.revision },
});

/** Mistakes that a register, a rule or a gateway could have, and setups in which each of them breaks the promise. */
export const mistakes: [what: string, setup: Partial<Setup>][] = [
  [
    'a register whose create looks first and writes later',
    { broken: { create: (write, held, seen) => (seen ? write : over(write, held)) } },
  ],
  [
    'a register whose create takes over an execution whose lease has lapsed',
    {
      lapses: 1,
      broken: {
        create: (write, held) => {
          const lapsed = held?.record.state === 'executing' && !isAlive(held as Held);
          return lapsed ? over(write, held) : write;
        },
      },
    },
  ],
  [
    'a restart that does not look at the revision',
    {
      ...{ requests: 3, inDoubt: 'retry' },
      broken: {
        replace: (write, held) => (write.record?.state === 'executing' ? over(write, held) : write),
      },
    },
  ],
  [
    'a complete that does not look at the revision',
    {
      ...{ inDoubt: 'retry', lapses: 1 },
      broken: {
        replace: (write, held) => (write.record?.state === 'completed' ? over(write, held) : write),
      },
    },
  ],
  [
    'a register that voids no token',
    { lostCommands: 1, broken: { replace: ({ voidToken: _, ...write }) => write } },
  ],
  [
    'a rule that lets an operator resolve the key of a living owner',
    { resolutions: 1, broken: { resolvesLiving: true } },
  ],
  ['a gateway without the fence, and an operator', { lapses: 1, resolutions: 1, broken: { noFence: true } }],
  [
    'a gateway without the fence, under inDoubt: retry',
    { inDoubt: 'retry', lapses: 1, broken: { noFence: true } },
  ],
];
