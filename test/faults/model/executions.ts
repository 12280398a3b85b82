// @ts-nocheck until the rules are the reference of this suite
import { expect } from 'vitest';
import type { Scope } from '../../../src/lib/brands.ts';
import { type StartAnswer, StoreUnavailable } from '../../../src/store/contract.ts';
import { Checked } from './checked.ts';
import type { GaveUp, Reference } from './reference.ts';
import type { Attempt, AttemptParts, Model } from './state.ts';
import type { World } from './worlds.ts';

/** The answer of a start or a restart, or that its token is void. */
async function answered<T>(command: Promise<T>): Promise<T | GaveUp> {
  return await command.catch((error: unknown) => {
    expect(error).toBeInstanceOf(StoreUnavailable);
    expect(error).toMatchObject({ maybeWritten: false, message: expect.stringMatching(/given up/) });
    return 'gave_up' as const;
  });
}

/** Sends the attempt's first write, which may arrive late. */
async function send(attempt: Attempt, { reference }: Model): Promise<void> {
  const { execution, node, first } = attempt;
  const isVoid = reference.isVoid(execution.token);
  const answer = await answered<StartAnswer | 'ok' | 'changed'>(node[first](execution));
  // The store may refuse a void token before it looks at the record. It writes nothing then, and neither does the model.
  if (answer === 'gave_up' && isVoid) return;
  const expected = reference[first](execution);
  const kind = typeof answer === 'string' ? answer : answer.kind;
  expect(kind).toBe(expected);
  if (kind === 'started' || kind === 'ok') attempt.owned = true;
  const completion = reference.at(execution.scope)?.completion;
  if (typeof answer !== 'string' && answer.kind === 'completed')
    expect({ kind: 'response', response: answer.response }).toEqual(completion);
}

export class Start extends Checked<AttemptParts & { times: number }> {
  protected async act(model: Model, world: World) {
    const attempt = model.newAttempt('start', world, this.parts);
    for (let times = 0; times < this.parts.times; times++) await send(attempt, model);
  }
}

/**
 * While a paused owner that continued holds the lease, the next owner cannot take its lease, and the stores differ in how long.
 * This concerns liveness only, see ADR 1.
 */
const canTakeLease = (reference: Reference, scope: Scope): boolean => {
  const record = reference.at(scope);
  return record?.state !== 'in_doubt' || !reference.isAlive(record);
};

export class Restart extends Checked<AttemptParts & { times: number; always: boolean }> {
  // Mostly attempts whose write changes something.
  override check(model: Readonly<Model>) {
    const scope = model.scope(this.parts.scope);
    if (!this.parts.always && model.reference.at(scope)?.state !== 'in_doubt') return false;
    return canTakeLease(model.reference, scope);
  }
  protected async act(model: Model, world: World) {
    const attempt = model.newAttempt('restart', world, this.parts);
    for (let times = 0; times < this.parts.times; times++) await send(attempt, model);
  }
}

/** A start or restart arrives a second time, perhaps after its token was voided. */
export class ArriveAgain extends Checked<{ writer: number }> {
  override check(model: Readonly<Model>) {
    const attempt = model.writer(this.parts.writer);
    return attempt !== undefined && canTakeLease(model.reference, attempt.execution.scope);
  }
  protected async act(model: Model) {
    await send(model.writer(this.parts.writer) as Attempt, model);
  }
}

/**
 * A start or restart whose answer is lost. Its gateway gives it up and voids the token. The write itself arrives before that
 * and once more after it, or only after it.
 */
export class GiveUp extends Checked<AttemptParts & { first: Attempt['first']; late: boolean }> {
  override check(model: Readonly<Model>) {
    return canTakeLease(model.reference, model.scope(this.parts.scope));
  }
  protected async act(model: Model, world: World) {
    const { first, late } = this.parts;
    const attempt = model.newAttempt(first, world, this.parts);
    const { execution, node } = attempt;
    if (!late) await send(attempt, model);
    const giveUp = first === 'start' ? ('release' as const) : ('markInDoubt' as const);
    const expected = model.reference[giveUp](execution, { voidToken: true });
    expect(await node[giveUp](execution, { voidToken: true })).toBe(expected);
    attempt.gaveUp = true;
    await send(attempt, model);
  }
}

/** Several starts at once. The answers must match some order of the starts, with the winner first. */
export class RaceForScope extends Checked<{ scope: number; racers: number }> {
  protected async act(model: Model, world: World) {
    const { scope, racers: length } = this.parts;
    const racers = Array.from({ length }, (_, node) =>
      model.newAttempt('start', world, { scope, node, otherRequest: false }),
    );
    const answers = await Promise.all(racers.map(({ execution, node }) => node.start(execution)));
    const order = racers.map((racer, i) => ({ racer, kind: (answers[i] as StartAnswer).kind }));
    const won = ({ kind }: { kind: string }) => kind === 'started';
    for (const { racer, kind } of order.toSorted((a, b) => Number(won(b)) - Number(won(a)))) {
      expect(kind).toBe(model.reference.start(racer.execution));
      racer.owned = kind === 'started';
    }
  }
}
