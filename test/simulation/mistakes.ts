import { Ledger } from '../../src/ledger/ledger.ts';
import type { RecordId } from '../../src/lib/brands.ts';
import type { Exchange } from '../../src/lib/exchange.ts';
import type { CopyProgress, Create, Replace, Reply } from '../../src/store/register.ts';
import {
  type Execution,
  type KeyRecord,
  type StartAnswer,
  StoreUnavailable,
  type Written,
} from '../../src/store/types.ts';
import { MemoryRegister } from '../support/memory-register.ts';
import type { Dice } from './dice.ts';
import { type FaultPlan, type Mix, type OperatorPlan, RETENTION_MS, type RequestPlan } from './plan.ts';
import type { Mistakes } from './world.ts';

/** A world with one mistake, and a mix in which it matters. */
export interface BrokenWorld {
  mix: Mix;
  mistakes: Mistakes;
}

const LEASE_MS = 10_000;
const onlyOne = { replicas: 0, acknowledgedBy: 0, lockNodes: false };
const early = (dice: Dice) => dice.between(1, 12);
/** The gateway of a start is paused for longer than a lease. */
const pauses = (dice: Dice): FaultPlan[] => [
  { step: early(dice), kind: 'freeze', clocks: 'both run', ms: (2 + dice.next() * 6) * LEASE_MS },
];
const kills = (dice: Dice): FaultPlan[] => [{ step: early(dice), kind: 'kill', restartAfterMs: 1000 }];
const failovers = (dice: Dice): FaultPlan[] => [
  { step: dice.between(1, 6), kind: 'failover' },
  { step: dice.between(4, 30), kind: 'failover' },
];
const none = () => [];
const later = (dice: Dice) => dice.between(15, 60);

const replacing = (change: (write: Replace, there: KeyRecord | undefined) => Replace | undefined) =>
  class extends MemoryRegister {
    override async replace(id: RecordId, write: Replace): Promise<Reply> {
      const there = await this.read(id).catch(() => undefined);
      const changed = change(write, there?.record);
      return changed ? await super.replace(id, changed) : { done: true };
    }
  };

const creating = (change: (write: Create) => Create | undefined) =>
  class extends MemoryRegister {
    override async create(id: RecordId, write: Create): Promise<Reply> {
      const changed = change(write);
      return changed ? await super.create(id, changed) : { done: true };
    }
  };

/** The destination serves before the records are copied. */
class OpensFirst extends MemoryRegister {
  override changeCopyProgress(to: CopyProgress): Promise<boolean> {
    return super.changeCopyProgress(to.state === 'receiving' ? { ...to, state: 'opened' } : to);
  }
}

/** What a transaction has written of the key is not committed with the rest. */
class CommitsNoRecord extends MemoryRegister {
  override end(by: object): void {
    super.end(by, false);
  }
}

/** Takes over what has no lease any more. */
class LeaseOnly extends Ledger {
  override async start(execution: Execution): Promise<StartAnswer> {
    const answer = await super.start(execution);
    if (answer.kind !== 'in_doubt') return answer;
    const record = await this.get(execution.recordId);
    if (record) await this.release({ recordId: execution.recordId, token: record.token });
    return await super.start(execution);
  }
}

/** Takes a start without an answer for one that succeeded. */
class Hopeful extends Ledger {
  override async start(execution: Execution): Promise<StartAnswer> {
    try {
      return await super.start(execution);
    } catch (error) {
      if (error instanceof StoreUnavailable && error.maybeWritten) return { kind: 'started' };
      throw error;
    }
  }
}

class NeverTakesBack extends Ledger {
  override async takeBack(): Promise<Written> {
    return 'ok';
  }
}

/** An owner that does not ask right before it sends whether it still is the owner. */
class NeverAsks extends Ledger {
  override async aliveForMs(): Promise<number> {
    return LEASE_MS;
  }
}

class NeverTold extends Ledger {
  override complete(...[execution, completion]: Parameters<Ledger['complete']>) {
    return super.complete(execution, completion, false);
  }
}

const unknownIsNothing = (exchange: Exchange): Exchange =>
  exchange.kind === 'unknown' ? { kind: 'not_sent', reason: exchange.reason } : exchange;

const stillRunsIsResult = (exchange: Exchange): Exchange =>
  exchange.kind === 'complete' && exchange.response.status === 409
    ? { ...exchange, response: { ...exchange.response, status: 200 } }
    : exchange;

/** Some requests come when a record that was never in doubt has expired. */
const retriesLate = (dice: Dice, request: RequestPlan): RequestPlan =>
  dice.chance(0.3) ? { ...request, atMs: RETENTION_MS * (1.1 + dice.next() * 20) } : request;

/** Some requests come when the owner counts as dead, others when a record that was never in doubt has expired. */
const comesWhenDead = (dice: Dice, request: RequestPlan): RequestPlan => ({
  ...request,
  ...{ key: 0, isOther: false, retries: 1, waitMs: 0 },
  atMs: dice.pick([0, LEASE_MS * (1.1 + dice.next()), RETENTION_MS * (2 + dice.next())]),
});

const comesWithinMinutes = (dice: Dice, request: RequestPlan): RequestPlan => ({
  ...request,
  ...{ key: 0, atMs: dice.next() ** 2 * 12 * LEASE_MS, isOther: false, leavesAfterMs: undefined },
});

/** The operator looks when a lease has ended, and acts at once or some time later. */
const comesSoon = (dice: Dice, operator: OperatorPlan): OperatorPlan => ({
  ...operator,
  ...{ key: 0, atMs: (1.1 + dice.next()) * LEASE_MS, times: 1 },
  actsAfterMs: dice.chance(0.4) ? 0 : (1 + dice.next() * 5) * LEASE_MS,
});

/** Each of these is caught within a thousand payouts. */
export const BROKEN: Readonly<Record<string, BrokenWorld>> = {
  'no fence': {
    mix: { inDoubt: 'hold', store: onlyOne, faults: pauses, operators: 3, networkFaults: 0 },
    mistakes: { noFence: true },
  },
  'a start that is not durable': {
    mix: { store: { replicas: 1, acknowledgedBy: 0, lockNodes: false }, faults: failovers, networkFaults: 0 },
    mistakes: {},
  },
  'starts that are lost': {
    mix: { inDoubt: 'hold', store: onlyOne, faults: none },
    mistakes: {
      Registers: creating((write) => ((write.record.revision[0] as number) % 8 ? write : undefined)),
    },
  },
  'starts without an answer that are sent': {
    mix: { inDoubt: 'hold', store: onlyOne, faults: none, networkFaults: 0.3 },
    mistakes: { Ledgers: Hopeful },
  },
  'starts without an answer that are not taken back': {
    mix: { inDoubt: 'hold', store: onlyOne, faults: none, networkFaults: 0.3 },
    mistakes: { Ledgers: NeverTakesBack },
  },
  'tokens that are not voided': {
    mix: { inDoubt: 'hold', store: onlyOne, faults: none, networkFaults: 0.6 },
    mistakes: { Registers: replacing(({ voidToken, ...write }) => write) },
  },
  'clocks that stand still, and no question': {
    mix: {
      ...{ inDoubt: 'retry', store: onlyOne, networkFaults: 0, operators: 0, request: comesWithinMinutes },
      faults: (dice) => [
        {
          step: dice.between(1, 3),
          kind: 'freeze',
          clocks: 'none runs',
          ms: (2 + dice.next() * 6) * LEASE_MS,
        },
      ],
    },
    mistakes: { Ledgers: NeverAsks },
  },
  'a complete that does not compare': {
    mix: {
      ...{ inDoubt: 'hold', store: onlyOne, networkFaults: 0, operators: 2, operator: comesSoon },
      ...{ backend: { 'refuses before it pays': 3, pays: 1 }, request: comesWithinMinutes },
      faults: (dice) => [
        {
          step: dice.between(4, 8),
          kind: 'freeze',
          clocks: 'both run',
          ms: (4 + dice.next() * 4) * LEASE_MS,
        },
      ],
    },
    mistakes: {
      Registers: replacing((write, there) =>
        write.record?.state === 'completed' ? { ...write, revision: there?.revision } : write,
      ),
    },
  },
  'a lease as the only guard': {
    mix: { inDoubt: 'hold', store: onlyOne, faults: kills, operators: 0 },
    mistakes: { Ledgers: LeaseOnly },
  },
  'a release after an unknown end': {
    mix: { inDoubt: 'hold', store: onlyOne, faults: none, operators: 0, networkFaults: 0 },
    mistakes: { exchange: unknownIsNothing },
  },
  'a resolution of whatever is there': {
    mix: {
      ...{ inDoubt: 'hold', store: onlyOne, operators: 6, networkFaults: 0, faults: none },
      ...{ operator: comesSoon, request: comesWithinMinutes },
      backend: { 'resets before it pays': 1, 'resets after it has paid': 1 },
    },
    mistakes: { anyExecution: true },
  },
  'age by a wall clock that jumps': {
    mix: {
      ...{ inDoubt: 'lookup', store: onlyOne, operators: 0, networkFaults: 0, handlers: false },
      ...{ backend: { 'pays later than everyone waits': 1 }, request: comesWithinMinutes },
      faults: (dice) =>
        Array.from({ length: 4 }, () => ({ step: dice.between(6, 24), kind: 'clock steps', ms: 600_000 })),
    },
    mistakes: { ageByWall: true },
  },
  'told unknown and kept for 24 hours': {
    mix: {
      ...{ inDoubt: 'hold', store: onlyOne, operators: 0, networkFaults: 0, request: retriesLate },
      faults: (dice) => [{ step: dice.between(3, 8), kind: 'freeze', clocks: 'both run', ms: 2 * LEASE_MS }],
    },
    mistakes: {
      Registers: replacing((write) =>
        write.record?.state === 'completed' ? { ...write, expiresInMs: RETENTION_MS } : write,
      ),
    },
  },
  'a late handler that does not say that its merchant was told': {
    mix: {
      ...{
        inDoubt: 'hold',
        store: onlyOne,
        operators: 0,
        faults: none,
        networkFaults: 0,
        request: retriesLate,
      },
      ...{ handlers: true, backend: { 'pays later than everyone waits': 1 } },
    },
    mistakes: { Ledgers: NeverTold },
  },
  'a 409 that completes after a restart': {
    mix: {
      ...{ inDoubt: 'retry', store: onlyOne, operators: 0, faults: none, networkFaults: 0, handlers: false },
      backend: { 'resets while it pays': 1 },
    },
    mistakes: { exchange: stillRunsIsResult },
  },
  eviction: {
    mix: { store: onlyOne, networkFaults: 0, faults: none },
    mistakes: { Registers: creating((write) => ({ ...write, expiresInMs: 20_000 })) },
  },
  'a store that is emptied': {
    mix: { networkFaults: 0, store: onlyOne, faults: (dice) => [{ step: later(dice), kind: 'restore' }] },
    mistakes: {},
  },
  'a store that is restored to an older state': {
    mix: {
      ...{ networkFaults: 0, store: onlyOne },
      faults: (dice) => [
        { step: dice.between(1, 20), kind: 'backup' },
        { step: later(dice), kind: 'restore' },
      ],
    },
    mistakes: {},
  },
  "a reader's mark that may be lost": {
    mix: {
      ...{ inDoubt: 'hold', networkFaults: 0, operators: 0, handlers: false, backend: { pays: 1 } },
      ...{ store: { replicas: 1, acknowledgedBy: 1, lockNodes: false }, request: comesWhenDead },
      faults: (dice) => [
        { step: 'request sent', kind: 'freeze', clocks: 'none runs', ms: (2 + dice.next()) * LEASE_MS },
        { step: 'in_doubt answered', kind: 'failover' },
      ],
    },
    mistakes: {
      write: (write) => (write.record?.state === 'in_doubt' ? { ...write, mayBeLost: true } : write),
    },
  },
  'a copy that is run after the opening': {
    mix: { copies: true, networkFaults: 0, operators: 0 },
    mistakes: { Registers: OpensFirst },
  },
  'a payout that is committed without its key': {
    mix: {
      ...{ inDoubt: 'hold', store: onlyOne, operators: 0, faults: none, networkFaults: 0 },
      ...{ transactions: true, copies: false },
    },
    mistakes: { Registers: CommitsNoRecord },
  },
  'one acknowledgement of two': {
    mix: { store: { replicas: 2, acknowledgedBy: 1, lockNodes: false }, faults: failovers, networkFaults: 0 },
    mistakes: {},
  },
};
