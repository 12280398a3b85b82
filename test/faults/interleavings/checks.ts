import type { Result } from '../../../src/idempotency/call.ts';
import { Engine } from '../../../src/idempotency/engine.ts';
import { Ledger } from '../../../src/ledger/ledger.ts';
import { systemClock } from '../../../src/lib/clock.ts';
import { callOf, engineOptions, lifetimes, type Process, silentObserver, slotsOf } from './process.ts';
import { LEASE_MS } from './setup.ts';
import type { World } from './world.ts';

/** The promise was broken. */
export class Violation extends Error {
  override readonly name = 'Violation';
}

function demand(holds: boolean, otherwise: string): void {
  if (!holds) throw new Violation(otherwise);
}

/**
 * Right before the first byte: the request owns the key, and no other was sent before it, unless the key has been in doubt
 * since and may be executed again.
 */
export function checkSend(world: World, name: string): void {
  const record = world.held?.record;
  const owner = record && world.nameOfToken(record.token);
  demand(owner?.startsWith(name) === true, `${name} was sent, and the key belongs to ${owner}`);
  demand(record?.state === 'executing', `${name} was sent, and the key is ${record?.state}`);
  if (world.sent.length === 0) return;
  demand(world.setup.inDoubt === 'retry', `${name} was sent after ${world.sent}`);
  demand(record?.wasInDoubt === true, `${name} was sent after ${world.sent}, which are not in doubt`);
}

/** After every step: no answer contradicts what happened. */
export function checkAnswers(world: World, process: Process): void {
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
      demand(ran === (answer.exchange.kind !== 'not_sent'), `${name} got ${answer.exchange.kind}`);
      if (answer.stored) demand(resultIn(world) === name, `${name} was answered before it was completed`);
      else if (answer.decision === 'complete')
        demand(process.pendingWrites > 0, `${name} was answered, and its result is given up`);
      return;
    case 'replayed': {
      const replayed = answer.response.body.toString();
      demand(replayed === resultIn(world), `${name} got ${replayed}, which is not stored`);
      // A late owner answers with what the store holds.
      demand(!ran || replayed !== name, `${name} got its own result as a replay`);
      return;
    }
    case 'in_flight':
    case 'in_doubt':
    case 'store_unavailable':
    case 'overloaded':
      demand(!ran, `${name} got ${answer.kind}, and was executed`);
      return;
    default:
      demand(false, `${name} got ${answer.kind}`);
  }
}

function resultIn({ held }: World): string | undefined {
  const completion = held?.record.completion;
  return completion?.kind === 'response' ? completion.response.body.toString() : undefined;
}

/** When every lease has lapsed, one more request is sent. It is executed if and only if no earlier one was. */
export async function checkEnd(world: World): Promise<void> {
  const { sent, setup, diedStarted } = world;
  const { held: record } = world;
  const result = resultIn(world);
  const [answer, runs] = await oneMore(world);
  if (setup.inDoubt === 'hold') checkCompleted(world, result);
  demand(sent.length === 0 || record !== undefined, `${sent} may have been executed, and the key is free`);
  if (result !== undefined) {
    demand(runs === 0, `executed again, and the result ${result} is stored`);
    const replay = answer.kind === 'replayed' && answer.response.body.toString() === result;
    demand(replay, `the result is ${result}, and a retry got ${answer.kind}`);
    return;
  }
  if (sent.length > 0 && setup.inDoubt === 'hold') {
    demand(runs === 0, `executed again after ${sent}`);
    demand(answer.kind === 'in_doubt', `${sent} is in doubt, and a retry got ${answer.kind}`);
    return;
  }
  // Nothing was sent. Only a process that died after a start may leave the key in doubt.
  if (setup.inDoubt === 'hold' && diedStarted > 0 && answer.kind === 'in_doubt') return;
  demand(runs === 1, `nothing was executed, and a retry got ${answer.kind}`);
}

/** An acknowledged result is stored in the end, unless its process died. */
function checkCompleted({ processes }: World, result: string | undefined): void {
  for (const { isDead, answers } of processes) {
    for (const [name, answer] of answers) {
      const completed = answer.kind === 'executed' && answer.decision === 'complete';
      demand(isDead || !completed || result !== undefined, `${name} was answered, and no result is stored`);
    }
  }
}

async function oneMore({ register, setup, nowMs }: World): Promise<[Result, runs: number]> {
  const later = register.clone(() => nowMs + LEASE_MS);
  let runs = 0;
  const store = new Ledger(later, { gatewayId: '', lifetimes, clock: systemClock });
  const engine = new Engine(store, slotsOf(1, systemClock), engineOptions, silentObserver, systemClock);
  const call = callOf('<later>', { waitMs: 0, inDoubt: setup.inDoubt }, async () => {
    runs++;
    return { kind: 'complete', response: { status: 201, headers: [], body: Buffer.from('<later>') } };
  });
  return [await engine.handle(call), runs];
}
