import { draw, type Mix, type Plan } from './plan.ts';
import { type Mistakes, type Outcome, type Reached, World } from './world.ts';

/** The mixes that `--mix` names, each with what it excuses. */
export const MIXES: Readonly<Record<string, { mix: Mix; says: string }>> = {
  default: { mix: {}, says: 'everything that the promise covers' },
  careless: {
    mix: { carelessOperators: true },
    says: 'operators release keys whose requests are still under way: what is paid twice by that is excused, and counted',
  },
};

/** What the product can refuse or report. A run names those that none of its histories has reached. */
export const EVENTS = [
  ...['in doubt: timeout', 'in doubt: connection', 'in doubt: status', 'sends again', 'fenced'],
  ...['stale renew', 'stale complete', 'stale release', 'stale in_doubt', 'late answer', 'lease lost'],
  ...['complete late', 'complete given up'],
  ...['looked up completed', 'looked up released', 'looked up unknown', 'looked up failed'],
  ...['operator told done', 'operator told alive', 'operator told changed', 'operator told absent'],
  'operator told unavailable',
  ...['told executed', 'told replayed', 'told tombstone', 'told in_flight', 'told mismatch', 'told in_doubt'],
  ...['told store_unavailable', 'told overloaded', 'told closing'],
  ...['transaction of ours', 'transaction of a library', 'committed'],
];

export interface Sum {
  worlds: number;
  /** Requests with a key that merchants sent, retries included. */
  payouts: number;
  executions: number;
  /** Simulated, in milliseconds. */
  tookMs: number;
  excused: Map<string, number>;
  reached: Reached;
}

export const newSum = (): Sum => ({
  ...{ worlds: 0, payouts: 0, executions: 0, tookMs: 0 },
  ...{ excused: new Map(), reached: new Map() },
});

export interface Failure {
  seed: number;
  violations: string[];
}

/** Runs the history of one seed. */
export async function runSeed(
  seed: number,
  { mix = {}, mistakes = {}, sum = newSum() }: { mix?: Mix; mistakes?: Mistakes; sum?: Sum } = {},
): Promise<Failure | undefined> {
  const outcome = await runPlan(draw(seed, mix), mistakes, sum.reached);
  sum.worlds++;
  sum.payouts += outcome.payouts;
  sum.executions += outcome.executions;
  sum.tookMs += outcome.tookMs;
  for (const [why, number] of outcome.excused) sum.excused.set(why, (sum.excused.get(why) ?? 0) + number);
  return outcome.violations.length > 0 ? { seed, violations: outcome.violations } : undefined;
}

/** A history that cannot go on is a violation as well. */
export async function runPlan(
  plan: Plan,
  mistakes: Mistakes = {},
  reached?: Reached,
  log?: string[],
): Promise<Outcome> {
  const world = new World(plan, mistakes, reached, log);
  try {
    return await world.run();
  } catch (error) {
    return world.outcome([error instanceof Error ? (error.stack ?? error.message) : String(error)]);
  }
}

/** The events of a history, line by line. */
export async function historyOf(plan: Plan, mistakes?: Mistakes): Promise<string[]> {
  const log: string[] = [];
  const { violations } = await runPlan(plan, mistakes, undefined, log);
  return [...log, ...violations];
}

/**
 * Leaves out what the violation does not need: faults, operators, requests, retries, the second layer. Each actor has dice of its own, so the others do
 * the same without it. Ends when nothing more can be left out, or after `ms`.
 */
export async function reduce(plan: Plan, mistakes: Mistakes | undefined, ms: number): Promise<Plan> {
  const untilMs = performance.now() + ms;
  let shortest = plan;
  for (let isShorter = true; isShorter; ) {
    isShorter = false;
    for (const candidate of shorterThan(shortest)) {
      if (performance.now() > untilMs) return shortest;
      if ((await runPlan(candidate, mistakes)).violations.length === 0) continue;
      shortest = candidate;
      isShorter = true;
      break;
    }
  }
  return shortest;
}

function* shorterThan(plan: Plan): Generator<Plan> {
  for (const part of ['faults', 'operators', 'requests'] as const)
    for (let left = 0; left < plan[part].length; left++)
      yield { ...plan, [part]: plan[part].filter((_, at) => at !== left) };
  for (const [at, request] of plan.requests.entries()) {
    const instead = (change: Partial<Plan['requests'][number]>): Plan => ({
      ...plan,
      requests: plan.requests.with(at, { ...request, ...change }),
    });
    if (request.retries > 0) yield instead({ retries: request.retries - 1 });
    if (request.leavesAfterMs !== undefined) yield instead({ leavesAfterMs: undefined });
  }
  if (plan.layers)
    yield { ...plan, layers: undefined, gateways: plan.gateways.filter(({ isInner }) => !isInner) };
  if (plan.gateways.some(({ networkFaults }) => networkFaults > 0))
    yield { ...plan, gateways: plan.gateways.map((one) => ({ ...one, networkFaults: 0 })) };
}
