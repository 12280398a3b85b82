import type { InDoubtPolicy } from '../../src/idempotency/call.ts';
import type { BackendPlan } from './backend.ts';
import {
  type FaultPlan,
  IN_DOUBT_RETENTION_MS,
  type LayersPlan,
  type OperatorPlan,
  type Plan,
  RETENTION_MS,
  type RequestPlan,
} from './plan.ts';
import { CONVERGES, type Mistakes, type Reached, World } from './world.ts';

export const LEASE_MS = 10_000;

/** A history whose interesting choices are fixed. Nothing else in it breaks, and every gateway's clock is right. */
export interface Scenario {
  inDoubt?: InDoubtPolicy;
  /** Default: merchants ask gateways 0 and 1, which ask the backend. With layers, those ask gateway 2. */
  layers?: LayersPlan;
  /** What the backend does with the first requests. Default: it pays at once. */
  backend?: BackendPlan['first'];
  /** Default of each: the first key, gateway 0, at the beginning, neither a wait nor another try. */
  requests: Partial<RequestPlan>[];
  operators?: Partial<OperatorPlan>[];
  faults?: FaultPlan[];
}

export interface Played {
  /** What was executed, and what merchants and operators were told, until the faults stopped. */
  told: string[];
  /** All of it, line by line. */
  history: string[];
  reached: Reached;
  violations: string[];
}

const TOLD = / ← |^backend executes|^an operator is told/;

export async function play(scenario: Scenario, mistakes: Mistakes = {}): Promise<Played> {
  const reached: Reached = new Map();
  const log: string[] = [];
  const { violations } = await new World(planOf(scenario), mistakes, reached, log).run();
  const history = log.map((line) => line.trimStart().replace(/^\S+ /, ''));
  const until = history.slice(0, history.indexOf(CONVERGES));
  return { told: until.filter((line) => TOLD.test(line)), history, reached, violations };
}

function planOf({ inDoubt = 'hold', layers, backend = [], requests, operators = [], faults = [] }: Scenario) {
  const gateway = (isInner: boolean): Plan['gateways'][number] => ({
    plan: {
      ...{ leaseMs: LEASE_MS, retentionMs: RETENTION_MS, inDoubtRetentionMs: IN_DOUBT_RETENTION_MS, inDoubt },
      ...{ maxConnections: 8, completeRetryMs: 2000, responseTimeoutMs: 30_000, releaseAfterMs: 60_000 },
      ...{ abandonAfterMs: undefined, connectsAtOnce: true },
    },
    ...{ clocks: { wallAheadMs: 0, rate: 1 }, networkFaults: 0, isInner },
  });
  const request: RequestPlan = {
    ...{ key: 0, atMs: 0, gateway: 0, isOther: false, isRefund: false, waitMs: 0, retries: 0 },
    leavesAfterMs: undefined,
  };
  const operator = { key: 0, atMs: 0, gateway: 0, actsAfterMs: 0, times: 1, isBrief: false };
  const plan: Plan = {
    ...{ seed: 1, copy: undefined, layers, inDoubt, carelessOperators: false, faults },
    store: { replicas: 0, acknowledgedBy: 0, lockNodes: false },
    backend: { isIdempotent: inDoubt === 'retry', latestMs: 40_000, isCalm: true, first: backend },
    gateways: [gateway(false), gateway(false), ...(layers ? [gateway(true)] : [])],
    requests: requests.map((parts) => ({ ...request, ...parts })),
    operators: operators.map((parts) => ({ ...operator, ...parts })),
  };
  return plan;
}
