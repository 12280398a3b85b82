import { until } from '../../support/until.ts';
import type { Fault } from './faults.ts';
import { type Gateways, Struck } from './faults-of-gateways.ts';
import type { GatewayProcess } from './gateways.ts';
import type { StopsCompleting } from './history.ts';
import { isCompleted } from './merchants.ts';
import { resolveInDoubt } from './operators.ts';

const PAUSE_WITHIN_MS = 3000;
/** Longer than the lease of any gateway, on a loaded machine. */
const IN_DOUBT_WITHIN_MS = 8000;

/**
 * An owner is stopped between its durable start and its first byte, until another request has executed its key. When the
 * owner continues, it must send nothing.
 */
export function pausedOwners(world: Gateways, stopsCompleting: StopsCompleting): Fault[] {
  const fault = (name: string, inject: (owner: GatewayProcess, other: GatewayProcess) => Promise<void>) => {
    const struck = new Struck(world);
    const other = () =>
      world.random.pick(world.gateways.filter(({ number }) => number !== struck.gateway.number));
    return {
      ...{ of: 'gateway' as const, name, aim: struck.aim, holdMs: 0, stopsCompleting },
      alone: true as const,
      inject: () => inject(struck.gateway, other()),
      heal: async () => struck.gateway.resume(),
    };
  };
  return [
    fault('owner paused, its key resolved', (owner, other) => resolveMeanwhile(world, owner, other)),
    fault('owner paused, its key restarted', (owner, other) => restartMeanwhile(world, owner, other)),
  ];
}

/** An operator releases the key as soon as another gateway allows it, and its merchant retries there. */
async function resolveMeanwhile(world: Gateways, owner: GatewayProcess, other: GatewayProcess) {
  const paused = await owner.pauseAt('after_start', PAUSE_WITHIN_MS);
  const life = paused && world.merchants.lifeOf(`${paused.merchant} ${paused.key}`);
  if (!life) throw new Error(`gateway ${owner.number} did not reach the point`);
  await until(
    async () => (await resolveInDoubt(other.adminPort, paused.scope, 'released')) === undefined,
    IN_DOUBT_WITHIN_MS,
  );
  const ended = await world.merchants.call(life, 'impatient', other.number, { preferWaitS: 1 });
  if (!isCompleted(ended)) throw new Error(`the freed key was not executed: ${JSON.stringify(ended)}`);
}

/** Under the policy `retry` another gateway sends the request again as soon as the owner counts as dead. */
async function restartMeanwhile({ merchants }: Gateways, owner: GatewayProcess, other: GatewayProcess) {
  const life = merchants.newLife('checkout');
  // Under this policy the backend may execute another call twice, which the checker would report.
  life.isOver = true;
  const paused = owner.pauseAt('after_start', PAUSE_WITHIN_MS, `${life.payout.merchant} ${life.payout.key}`);
  void merchants.call(life, 'merchant', owner.number);
  if (!(await paused)) throw new Error(`gateway ${owner.number} did not reach the point`);
  const ended = await until(async () => {
    const answer = await merchants.call(life, 'impatient', other.number, { preferWaitS: 1 });
    return answer.kind === 'problem' && answer.code === 'request_in_flight' ? undefined : answer;
  }, IN_DOUBT_WITHIN_MS);
  if (!isCompleted(ended)) throw new Error(`the key was not restarted: ${JSON.stringify(ended)}`);
  life.isOver = false;
}
