/** What the ledger adds to the rules: it guesses, repeats, and remembers what an owner wrote. */
import { describe, expect, it } from 'vitest';
import { Ledger } from '../../src/ledger/ledger.ts';
import type { Scope } from '../../src/lib/brands.ts';
import { StoreUnavailable } from '../../src/store/contract.ts';
import type { Replace, Reply } from '../../src/store/register.ts';
import { MemoryRegister } from '../support/memory-register.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';

const lifetimes = { leaseMs: 10, retentionMs: 100, inDoubtRetentionMs: 1000 };

/** A register whose next replaces do what the test says. */
class Scripted extends MemoryRegister {
  readonly next: ((replace: () => Promise<Reply>) => Promise<Reply>)[] = [];

  override replace(id: Scope, write: Replace): Promise<Reply> {
    const replace = () => super.replace(id, write);
    return (this.next.shift() ?? ((act) => act()))(replace);
  }
}

function open() {
  const time = { nowMs: 1000 };
  const register = new Scripted(() => time.nowMs);
  const clock = { monotonicMs: () => time.nowMs, wallMs: () => time.nowMs };
  return { time, register, ledger: new Ledger(register, { gatewayId: 'gateway', lifetimes, clock }) };
}

const lost = () => Promise.reject(new StoreUnavailable('lost'));

describe('a write that is repeated', () => {
  it('is written if it never arrived', async () => {
    for (const write of ['complete', 'release', 'markInDoubt'] as const) {
      const { ledger, register } = open();
      const owner = newRequest();
      const act = () => (write === 'complete' ? ledger.complete(owner, paid()) : ledger[write](owner));
      await ledger.start(owner);
      register.next.push(lost);
      await expect(act()).rejects.toThrow('lost');
      expect(await act()).toBe('ok');
      const state = { complete: 'completed', release: undefined, markInDoubt: 'in_doubt' }[write];
      expect((await ledger.get(owner.scope))?.state).toBe(state);
    }
  });
});

it('says that a resolution may be written if its reply is lost, whatever was refused before', async () => {
  const { ledger, register, time } = open();
  const owner = newRequest();
  await ledger.start(owner);
  time.nowMs += 20;
  // A reader marks the record first, so that the resolution is refused once.
  register.next.push(
    async (replace) => {
      await ledger.peek(owner);
      return await replace();
    },
    (replace) => replace(),
    (replace) => replace().then(lost),
  );
  const note = { by: 'ada', reason: 'the books show it' };
  const resolved = ledger.resolve(owner.scope, owner.token, { as: 'completed', completion: paid() }, note);
  await expect(resolved).rejects.toMatchObject({ message: 'lost', maybeWritten: true });
});

it('says that a start is not written if it only left a mark on the record of a dead owner', async () => {
  const { ledger, register, time } = open();
  const owner = newRequest();
  await ledger.start(owner);
  time.nowMs += 20;
  register.next.push(lost);
  await expect(ledger.start(duplicateOf(owner))).rejects.toMatchObject({ maybeWritten: false });
});
