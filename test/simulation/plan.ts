import type { InDoubtPolicy } from '../../src/idempotency/call.ts';
import type { BackendPlan, Weights } from './backend.ts';
import { type Dice, diceOf } from './dice.ts';
import type { GatewayPlan } from './gateway.ts';
import type { Clocks, Freeze } from './machine.ts';
import type { StorePlan } from './store.ts';

export interface RequestPlan {
  key: number;
  atMs: number;
  gateway: number;
  /** Another body under the same key. */
  isOther: boolean;
  /** The request is identified as another operation than most. */
  isRefund: boolean;
  waitMs: number;
  /** The merchant disconnects. */
  leavesAfterMs: number | undefined;
  /** How often the merchant tries again while it has no final answer. */
  retries: number;
}

export interface OperatorPlan {
  key: number;
  atMs: number;
  gateway: number;
  /** The time between the look and the resolution. */
  actsAfterMs: number;
  times: number;
  /** Completes without the response. */
  isBrief: boolean;
  /** The operator works in the second of two layers. */
  isInner?: boolean;
}

/** Something that breaks when a gateway takes the n-th step of all, or the first one of this name, at or around that gateway. */
export type FaultPlan = { step: number | string } & (
  | { kind: 'freeze'; ms: number; clocks: Freeze }
  | { kind: 'kill'; restartAfterMs: number }
  | { kind: 'shutdown'; deadlineMs: number; restartAfterMs: number }
  | { kind: 'partition'; ms: number; direction: 'requests' | 'replies' | 'both' }
  | { kind: 'failover' }
  | { kind: 'clock steps'; ms: number }
  /** The store refuses new records, or every write. `isKnown`: gateways see it before they write. */
  | { kind: 'full'; ms: number; refuses: 'creates' | 'writes'; isKnown: boolean }
  | { kind: 'backup' }
  /** What was not in the backup is gone. Without one, everything is. */
  | { kind: 'restore' }
);

/** A second layer of gateways is behind the first one, which takes it for the backend. */
export interface LayersPlan {
  /** The name of the second layer. */
  name: string;
  haveOneStore: boolean;
}

/** All records are copied to another store, and the gateways move there one by one. */
export interface CopyPlan {
  atMs: number;
  /** The time between two runs, of which the first was killed or has failed. */
  againAfterMs: number;
  networkFaults: number;
  /** Two people begin it. */
  twice: boolean;
  /** How long the gateways take to move. */
  moveWithinMs: number;
  /** One gateway is started on the destination so long after the copy has begun. */
  earlyAfterMs: number | undefined;
}

export interface Plan {
  seed: number;
  copy: CopyPlan | undefined;
  layers: LayersPlan | undefined;
  inDoubt: InDoubtPolicy;
  store: StorePlan;
  backend: BackendPlan;
  gateways: { plan: GatewayPlan; clocks: Clocks; networkFaults: number; isInner: boolean }[];
  requests: RequestPlan[];
  operators: OperatorPlan[];
  faults: FaultPlan[];
  /** Operators do not look whether the request is still under way or its gateway is frozen. */
  carelessOperators: boolean;
}

/** Parts of a mix that a world is drawn with. What is undefined is drawn from the seed. */
export interface Mix {
  inDoubt?: InDoubtPolicy;
  carelessOperators?: boolean;
  networkFaults?: number;
  store?: StorePlan;
  faults?: (dice: Dice) => FaultPlan[];
  operators?: number;
  request?: (dice: Dice, plan: RequestPlan) => RequestPlan;
  operator?: (dice: Dice, plan: OperatorPlan) => OperatorPlan;
  calm?: boolean;
  backend?: Weights;
  /** Handlers of an application, and not a backend. */
  handlers?: boolean;
  gateways?: number;
  copies?: boolean;
  layers?: boolean;
  /** Handlers with a database of their own. */
  transactions?: boolean;
}

const HOUR_MS = 3_600_000;
export const RETENTION_MS = 24 * HOUR_MS;
export const IN_DOUBT_RETENTION_MS = 30 * RETENTION_MS;
/** Gateways may be configured differently: each record has the lifetimes that it was written with. */
const RETENTIONS_MS = [RETENTION_MS, RETENTION_MS, 1.5 * RETENTION_MS];
const LEASES_MS = [10_000, 10_000, 6000];
/** Steps of a small world: most of its faults meet one of them. */
const MOST_STEPS = 50;
/** Around the first byte, where most depends on what breaks. */
const MOMENTS = ['create answered', 'connecting', 'connected', 'request sent', 'backend answered'];
/** Around the claim and the commit of a transaction. */
const COMMITS = ['claim answered', 'pay sent', 'complete answered', 'commit sent', 'commit answered'];
/** Clocks of machines differ by at most so much. */
const MOST_DRIFT = 0.0002;

/** Draws a small world: one or two keys, a few gateways, merchants and operators, and faults at steps. */
export function draw(seed: number, mix: Mix = {}): Plan {
  const [dice, more] = [diceOf(seed, 'plan'), diceOf(seed, 'more of the plan')];
  const inDoubt = mix.inDoubt ?? dice.pick(['hold', 'hold', 'hold', 'lookup', 'retry'] as const);
  const releaseAfterMs = dice.pick([60_000, 120_000]);
  const replicas = dice.pick([0, 0, 0, 1, 2]);
  const store = mix.store ?? {
    ...{ replicas, acknowledgedBy: replicas },
    lockNodes: replicas === 0 && dice.chance(0.2),
  };
  const networkFaults = mix.networkFaults ?? dice.pick([0, 0, 0.03, 0.1, 0.3]);
  const isCalm = mix.calm ?? dice.chance(0.2);
  const copy = (mix.copies ?? dice.chance(0.12)) ? drawCopy(dice, Math.min(networkFaults, 0.03)) : undefined;
  // A mix that chooses its store has a mistake, which a second layer could make good.
  const layers = !copy && (mix.layers ?? more.chance(mix.store ? 0 : 0.15)) ? drawLayers(more) : undefined;
  // A copy waits for handlers.
  const longest = copy ? 40_000 : 3_600_000;
  const abandonAfterMs = (mix.handlers ?? dice.chance(0.15)) ? dice.pick([40_000, longest]) : undefined;
  const newGateway = (isInner: boolean): Plan['gateways'][number] => ({
    plan: {
      ...{ leaseMs: dice.pick(LEASES_MS), retentionMs: more.pick(RETENTIONS_MS), releaseAfterMs },
      // The outer layer does not look up keys: the backend may not know a request yet that the inner layer still sends.
      inDoubt: layers && !isInner && inDoubt === 'lookup' ? ('hold' as const) : inDoubt,
      inDoubtRetentionMs: more.pick([1, 1.2]) * IN_DOUBT_RETENTION_MS,
      maxConnections: dice.pick([1, 2, 8]),
      abandonAfterMs,
      ...{ completeRetryMs: dice.pick([0, 500, 2000]), responseTimeoutMs: dice.pick([5000, 15_000]) },
    },
    clocks: {
      wallAheadMs: (dice.next() - 0.5) * 4000,
      rate: 1 + (dice.next() - 0.5) * 2 * MOST_DRIFT,
    },
    networkFaults,
    isInner,
  });
  const gateways = Array.from({ length: mix.gateways ?? dice.between(2, 4) }, () => newGateway(false));
  const front = gateways.length;
  if (layers) gateways.push(...Array.from({ length: more.between(1, 2) }, () => newGateway(true)));
  const mayCommit = inDoubt === 'hold' && !layers && store.replicas === 0 && !store.lockNodes;
  const often = diceOf(seed, 'commits');
  const commit = mayCommit && (mix.transactions ?? often.chance(mix.store ? 0 : 0.4));
  const share = often.pick([1, 1, 0.5]);
  for (const { plan } of gateways) plan.isTransactional = commit && often.chance(share);
  const keys = dice.chance(0.7) ? 1 : 2;
  const requests = Array.from({ length: dice.between(2, 7) }, (_, n) => {
    const plan: RequestPlan = {
      ...{
        key: n < keys ? n : dice.between(0, keys - 1),
        atMs: whenSent(dice),
        isOther: dice.chance(0.05),
        isRefund: dice.chance(0.05),
      },
      ...{ gateway: dice.between(0, front - 1), waitMs: dice.pick([0, 3000, 10_000]) },
      ...{
        leavesAfterMs: dice.chance(0.15) ? dice.next() * 8000 : undefined,
        retries: dice.pick([0, 1, 2, 4, 6]),
      },
    };
    return mix.request?.(dice, plan) ?? plan;
  });
  const operators = Array.from({ length: mix.operators ?? dice.between(0, 3) }, () => {
    const plan: OperatorPlan = {
      ...{ key: dice.between(0, keys - 1), atMs: 8000 + dice.next() ** 2 * 200_000 },
      ...{ gateway: dice.between(0, front - 1), isInner: more.chance(0.4), times: dice.pick([1, 1, 2]) },
      ...{ actsAfterMs: dice.chance(0.6) ? 0 : dice.next() ** 2 * 120_000, isBrief: dice.chance(0.3) },
    };
    return mix.operator?.(dice, plan) ?? plan;
  });
  const faults =
    mix.faults?.(dice) ?? Array.from({ length: dice.between(0, 3) }, () => drawFault(dice, store));
  if (!mix.faults) for (const fault of faults) if (more.chance(0.25)) fault.step = more.pick(MOMENTS);
  if (commit && !mix.faults)
    for (const fault of faults) if (often.chance(0.5)) fault.step = often.pick(COMMITS);
  // A clock is often set when a machine goes on.
  const freeze = faults.find(({ kind }) => kind === 'freeze');
  for (const fault of faults)
    if (freeze && fault.kind === 'clock steps' && more.chance(0.5)) fault.step = freeze.step;
  // A suspended machine whose wall clock is set back meanwhile has clocks that both show no time: no fence can notice that.
  if (faults.some((fault) => fault.kind === 'freeze' && fault.clocks === 'wall runs'))
    for (const fault of faults) if (fault.kind === 'clock steps') fault.ms = Math.abs(fault.ms);
  return {
    ...{ seed, inDoubt, copy, layers, store, gateways, requests, operators, faults },
    backend: {
      isIdempotent: inDoubt === 'retry',
      latestMs: releaseAfterMs - 20_000,
      isCalm,
      weights: mix.backend,
    },
    carelessOperators: mix.carelessOperators ?? false,
  };
}

/** Most requests of a key come at once or soon, some around the ends of its lifetimes. */
function whenSent(dice: Dice): number {
  const chance = dice.next();
  if (chance < 0.45) return dice.next() * 10;
  if (chance < 0.75) return dice.next() * 30_000;
  if (chance < 0.88) return dice.next() * 300_000;
  const at = dice.pick([23, 25, 37, 29 * 24, 31 * 24, 37 * 24]) * HOUR_MS;
  return at + dice.next() * 60_000;
}

/** Layers of one name have a store each: on one store they would be a circle, which is refused. */
function drawLayers(dice: Dice): LayersPlan {
  const haveOneStore = dice.chance(0.6);
  return { haveOneStore, name: haveOneStore || dice.chance(0.5) ? 'application' : 'gateway' };
}

function drawCopy(dice: Dice, networkFaults: number): CopyPlan {
  return {
    ...{ atMs: dice.next() ** 2 * 60_000, againAfterMs: 500 + dice.next() * 20_000, networkFaults },
    ...{ twice: dice.chance(0.3), moveWithinMs: dice.next() * 60_000 },
    earlyAfterMs: dice.chance(0.3) ? dice.next() * 15_000 : undefined,
  };
}

function drawFault(dice: Dice, { replicas }: StorePlan): FaultPlan {
  const step = 1 + Math.floor(dice.next() ** 1.5 * MOST_STEPS);
  const kinds = [
    'freeze',
    'freeze',
    'freeze',
    'kill',
    'kill',
    'shutdown',
    'partition',
    'clock steps',
    'full',
  ] as const;
  const kind = replicas > 0 && dice.chance(0.4) ? 'failover' : dice.pick(kinds);
  switch (kind) {
    case 'freeze': {
      const clocks = dice.pick(['both run', 'both run', 'wall runs', 'none runs'] as const);
      return {
        step,
        kind,
        clocks,
        ms: dice.pick([3000, 12_000, 30_000, 200_000]) * (0.8 + dice.next() * 0.4),
      };
    }
    case 'kill':
      return { step, kind, restartAfterMs: dice.next() * 20_000 };
    case 'shutdown':
      return { step, kind, deadlineMs: dice.pick([100, 5000, 30_000]), restartAfterMs: dice.next() * 40_000 };
    case 'partition':
      return {
        step,
        kind,
        ms: dice.next() * 30_000,
        direction: dice.pick(['requests', 'replies', 'both'] as const),
      };
    case 'clock steps':
      return { step, kind, ms: (dice.next() - 0.5) * 2 * HOUR_MS };
    case 'full': {
      const refuses = dice.pick(['creates', 'writes'] as const);
      return { step, kind, refuses, ms: dice.next() * 20_000, isKnown: dice.chance(0.5) };
    }
    case 'failover':
      return { step, kind };
  }
}
