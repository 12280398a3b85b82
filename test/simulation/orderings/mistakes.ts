import { Ledger } from '../../../src/ledger/ledger.ts';
import { isAlive } from '../../../src/ledger/rules.ts';
import type { Held, Replace, Seen } from '../../../src/store/register.ts';
import type { Mistake, Setup } from './world.ts';

/** A register that writes over whatever it holds. */
const writesOver = (when: (...args: Parameters<NonNullable<Mistake['executes']>>) => boolean): Mistake => ({
  executes: (write, held, seen) => {
    if (!when(write, held, seen)) return write;
    const operation = write.record?.operation ?? '';
    return { operation, ...write, kind: 'replace', revision: held?.record.revision };
  },
});

const voidsNone: Mistake = {
  executes: (write) => {
    const { voidToken: _, ...rest } = write as Replace;
    return rest;
  },
};

const hasLapsed = (held: Seen | undefined): boolean =>
  held?.record.state === 'executing' && !isAlive(held as Held);

/** Takes a living owner for one that gave up. */
class ResolvesLiving extends Ledger {
  override async resolve(...[recordId, seen, ...rest]: Parameters<Ledger['resolve']>) {
    await this.leaveInDoubt({ recordId, token: seen });
    return await super.resolve(recordId, seen, ...rest);
  }
}

/** Mistakes that a register, a rule or a gateway could have, and setups in which each of them breaks the promise. */
export const mistakes: [what: string, broken: Mistake, setup: Partial<Setup>][] = [
  [
    'a register whose create looks first and writes later',
    writesOver((write, _, seen) => write.kind === 'create' && !seen),
    {},
  ],
  [
    'a register whose create takes over an execution whose lease has lapsed',
    writesOver((write, held) => write.kind === 'create' && hasLapsed(held)),
    { lapses: 1 },
  ],
  [
    'a restart that does not look at the revision',
    writesOver((write) => write.kind === 'replace' && write.record?.state === 'executing'),
    { requests: 3, inDoubt: 'retry' },
  ],
  [
    'a complete that does not look at the revision',
    writesOver((write) => write.record?.state === 'completed'),
    { inDoubt: 'retry', lapses: 1 },
  ],
  ['a register that voids no token', voidsNone, { lostCommands: 1 }],
  [
    'a rule that lets an operator resolve the key of a living owner',
    { resolvesLiving: true, Ledgers: ResolvesLiving },
    { resolutions: 1 },
  ],
  ['a gateway without the fence, and an operator', { noFence: true }, { lapses: 1, resolutions: 1 }],
  ['a gateway without the fence, under inDoubt: retry', { noFence: true }, { inDoubt: 'retry', lapses: 1 }],
];
