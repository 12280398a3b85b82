import fc from 'fast-check';
import { expect } from 'vitest';
import type { Resolution } from '../../../src/store/contract.ts';
import { paid } from '../../support/requests.ts';
import { Checked, type Command } from './checked.ts';
import { ArriveAgain, GiveUp, RaceForScope, Restart, Start } from './executions.ts';
import type { Model } from './state.ts';
import { STEP_MS, type World } from './worlds.ts';
import { Complete, Crash, MarkInDoubt, Release, Renew } from './writes.ts';

class Pass extends Checked<{ ms: number }> {
  /**
   * Time never advances to a moment when a record has expired and its owner's lease has not: a redlock lease delays the next
   * owner's lease for a while, and the stores differ in how long. This concerns liveness only, see ADR 1.
   */
  override check({ reference, scopes }: Readonly<Model>) {
    const nowMs = reference.nowMs + this.parts.ms;
    const records = scopes.map((scope) => reference.at(scope)).filter((record) => record !== undefined);
    return records.every(({ aliveUntilMs, expiresAtMs }) => nowMs < expiresAtMs || aliveUntilMs <= nowMs);
  }
  protected async act({ reference }: Model, world: World) {
    reference.nowMs += this.parts.ms;
    await world.pass(this.parts.ms);
  }
}

const note = { by: 'ada', reason: 'the books show it' };

/** A resolution by an operator who has seen the record's token, or an earlier one. */
class Resolve extends Checked<{ scope: number; as: Resolution['as']; seen: number | null }> {
  override check(model: Readonly<Model>) {
    return this.#token(model) !== undefined;
  }
  #token(model: Readonly<Model>) {
    const { scope, seen } = this.parts;
    if (seen === null) return model.reference.at(model.scope(scope))?.token;
    return model.attempts[seen % model.attempts.length]?.execution.token;
  }
  protected async act(model: Model, { nodes }: World) {
    const [scope, seen] = [model.scope(this.parts.scope), this.#token(model)];
    if (!seen) return;
    const { as } = this.parts;
    const resolution: Resolution = as === 'completed' ? { as, completion: paid('by hand') } : { as };
    const resolved = await nodes[0]?.resolve(scope, seen, resolution, note);
    expect(resolved).toBe(model.reference.resolve(scope, seen, resolution));
    if (resolved === 'ok') model.resolutions[as] = (model.resolutions[as] ?? 0) + 1;
  }
}

/** The list of keys in doubt has the records in doubt and those that a dead owner left executing, and nothing else. */
class ListInDoubt extends Checked<object> {
  protected async act({ reference, scopes }: Model, { nodes }: World) {
    const listing = await nodes[0]?.list({ inDoubt: true, limit: 1000 });
    const doubtful = scopes.filter((scope) => {
      const record = reference.at(scope);
      if (record?.state === 'executing') return !reference.isAlive(record);
      return record?.state === 'in_doubt';
    });
    expect(listing?.records.map(({ scope }) => scope).toSorted()).toEqual(doubtful.toSorted());
  }
}

const index = fc.nat({ max: 2 });
const times = fc.oneof({ weight: 3, arbitrary: fc.constant(1) }, { weight: 1, arbitrary: fc.constant(2) });
const seldom = fc.nat({ max: 5 }).map((number) => number === 0);
/** Picks an attempt, most of the time the latest one. */
const writer = fc.oneof(
  { weight: 3, arbitrary: fc.constant(0) },
  { weight: 1, arbitrary: fc.nat({ max: 9 }) },
);
const write = fc.record({ writer, times });
const lastWrite = fc.record({ writer, times, voidToken: fc.boolean() });
const attempt = fc.record({ scope: index, node: index, otherRequest: seldom, times });
const first = fc.constantFrom('start' as const, 'restart' as const);
const racers = fc.integer({ min: 2, max: 5 });
const as = fc.constantFrom('completed' as const, 'released' as const);
const seen = fc.option(fc.nat({ max: 9 }));

/**
 * How far time advances: less than a lease, more than one, half the retention, all of it, the hour of a void token, and the
 * time that a record in doubt is kept.
 */
const ms = fc.constantFrom(...[1, 3, 27, 51, 164, 228].map((steps) => steps * STEP_MS));

/** Each command with its weight and its generator. A new command of the store needs a class and a line here. */
const commands: [weight: number, arbitrary: fc.Arbitrary<Command>][] = [
  [4, attempt.map((parts) => new Start(parts))],
  [3, fc.tuple(attempt, seldom).map(([parts, always]) => new Restart({ ...parts, always }))],
  [
    2,
    fc
      .tuple(attempt, first, fc.boolean())
      .map(([parts, kind, late]) => new GiveUp({ ...parts, first: kind, late })),
  ],
  [1, fc.record({ writer }).map((parts) => new ArriveAgain(parts))],
  [1, fc.record({ scope: index, racers }).map((parts) => new RaceForScope(parts))],
  [1, write.map((parts) => new Renew(parts))],
  [2, write.map((parts) => new Complete(parts))],
  [1, lastWrite.map((parts) => new Release(parts))],
  [2, lastWrite.map((parts) => new MarkInDoubt(parts))],
  [1, fc.record({ writer }).map((parts) => new Crash(parts))],
  [2, fc.record({ ms }).map((parts) => new Pass(parts))],
  [1, fc.record({ scope: index, as, seen }).map((parts) => new Resolve(parts))],
  [1, fc.constant({}).map((parts) => new ListInDoubt(parts))],
];

export const allCommands = commands.flatMap(([weight, arbitrary]) =>
  Array<typeof arbitrary>(weight).fill(arbitrary),
);
