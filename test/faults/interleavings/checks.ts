import type { EngineObserver, Result } from '../../../src/idempotency/call.ts';
import { Engine } from '../../../src/idempotency/engine.ts';
import type { Store } from '../../../src/idempotency/store.ts';
import { systemClock } from '../../../src/kernel/clock.ts';
import { storeOn } from './plain-store.ts';
import { callOf, nobody, type Process, scopeUnderTest } from './process.ts';
import { LEASE_MS, SETTLE_RETRY_MS } from './setup.ts';
import type { World } from './world.ts';

/** The promise was broken. */
export class Violation extends Error {
  override readonly name = 'Violation';
}

function demand(holds: boolean, otherwise: string): void {
  if (!holds) throw new Violation(otherwise);
}

/** After every step: at most one execution, and no answer that says something else than what happened. */
export function checkAnswers(world: World, process: Process): void {
  const { sent } = world;
  demand(sent.length <= 1, `sent ${sent.length} times`);
  for (const name of process.requests) {
    const answer = process.answers.get(name);
    if (!answer || world.checked.has(name)) continue;
    world.checked.add(name);
    checkAnswer(world, process, name, answer);
  }
}

function checkAnswer(world: World, process: Process, name: string, answer: Result): void {
  const ran = world.sent.includes(name);
  switch (answer.kind) {
    case 'executed':
      demand(ran === (answer.exchange.kind !== 'not_sent'), `${name} was told ${answer.exchange.kind}`);
      if (answer.decision === 'settle' && !isStillSettling(process, name))
        demand(resultIn(world) === name, `${name} was answered before it was settled`);
      return;
    case 'replayed':
      demand(!ran && answer.response.body.toString() === world.sent[0], `${name} got another result`);
      return;
    case 'in_flight':
    case 'in_doubt':
    case 'store_unavailable':
      demand(!ran, `${name} was told ${answer.kind}, and was executed`);
      return;
    default:
      demand(false, `${name} was told ${answer.kind}`);
  }
}

/** The merchant was not to wait any longer for a store that does not answer. */
const isStillSettling = ({ gates }: Process, name: string): boolean =>
  [...gates.keys()].some((place) => place.startsWith(`${name}.`) && place.endsWith(' settle'));

function resultIn({ reference }: World): string | undefined {
  const settlement = reference.at(scopeUnderTest)?.settlement;
  return settlement?.kind === 'response' ? settlement.response.body.toString() : undefined;
}

/** Once every lease has lapsed one more request comes: what was executed is not executed again, and what was not is. */
export async function checkEnd(world: World): Promise<void> {
  const [answer, runs] = await oneMore(world);
  const settled = resultIn(world);
  const [executed] = world.sent;
  if (executed !== undefined) {
    demand(runs === 0, `executed again after ${executed}`);
    const replay = answer.kind === 'replayed' && answer.response.body.toString() === executed;
    demand(settled === undefined ? answer.kind === 'in_doubt' : replay, `a retry was told ${answer.kind}`);
    return;
  }
  // Who died with a begin may have sent something, for all that the others know.
  if (world.diedBegun > 0 && answer.kind === 'in_doubt') return;
  demand(runs === 1, `nothing was executed, and a retry was told ${answer.kind}`);
}

async function oneMore({ reference }: World): Promise<[Result, runs: number]> {
  const later = reference.clone();
  later.nowMs += LEASE_MS;
  let runs = 0;
  const options = { leaseMs: 1000, retentionMs: 1000, settleRetryMs: SETTLE_RETRY_MS, maxWaiters: 1 };
  const engine = new Engine(storeOn(later) as Store, options, nobody as EngineObserver, systemClock);
  const call = callOf('<later>', 0, async () => {
    runs++;
    return { kind: 'complete', response: { status: 201, headers: [], body: Buffer.from('<later>') } };
  });
  return [await engine.handle(call), runs];
}
