import fc, { type AsyncCommand } from 'fast-check';
import { expect } from 'vitest';
import type { Resolution } from '../../../src/idempotency/resolution.ts';
import type { Claim, Store } from '../../../src/idempotency/store.ts';
import type { Scope } from '../../../src/kernel/brands.ts';
import { paid } from '../../support/requests.ts';
import type { Claimant, Model } from './state.ts';
import { TIMES, type World } from './worlds.ts';

type Command = AsyncCommand<Model, World>;

const kindOf = (claim: Claim) => (claim.kind === 'claimed' && claim.tookOver ? 'took_over' : claim.kind);

/** Every command ends with a look at all scopes, from another node than the one that wrote. */
abstract class Checked<Parts> implements Command {
  readonly parts: Parts;
  constructor(parts: Parts) {
    this.parts = parts;
  }

  check(_: Readonly<Model>): boolean {
    return true;
  }

  toString = () => `${this.constructor.name}(${JSON.stringify(this.parts)})`;

  async run(model: Model, world: World): Promise<void> {
    await this.act(model, world);
    await world.quiet();
    await Promise.all(model.scopes.map((scope) => looksAlike(model, world, scope)));
  }

  protected abstract act(model: Model, world: World): Promise<void>;
}

async function looksAlike(model: Model, { nodes }: World, scope: Scope): Promise<void> {
  const [expected, actual] = [model.reference.at(scope), await nodes.at(-1)?.get(scope)];
  expect(actual?.state).toEqual(expected?.state);
  expect(actual?.settlement).toEqual(expected?.settlement);
  expect(actual?.fingerprint).toEqual(expected?.fingerprint);
  // A resolution writes under a token that nobody else knows: what counts is whose it is not.
  const whose = model.claimants.map(({ request }) => request.token);
  expect(whose.map((token) => actual?.token.equals(token))).toEqual(
    whose.map((token) => expected?.token.equals(token)),
  );
}

class ClaimScope extends Checked<{ scope: number; node: number; otherRequest: boolean; times: number }> {
  protected async act(model: Model, world: World) {
    const { request, node } = model.newClaimant(world, this.parts);
    for (let times = 0; times < this.parts.times; times++) {
      const claim = await node.claim(request);
      expect(kindOf(claim)).toBe(model.reference.claim(request));
      if (claim.kind === 'settled')
        expect(claim.settlement).toEqual(model.reference.at(request.scope)?.settlement);
    }
  }
}

/** Of a key in doubt, for a second execution. */
class TakeOver extends Checked<{ scope: number; node: number; otherRequest: boolean; times: number }> {
  // Where the lease is held by an owner who woke up, the heir's own has to wait for it, see `Pass`.
  override check(model: Readonly<Model>) {
    const { reference } = model;
    const stands = reference.at(model.scope(this.parts.scope));
    return stands?.state !== 'in_doubt' || !reference.isAlive(stands);
  }
  protected async act(model: Model, world: World) {
    const heir = model.newClaimant(world, this.parts);
    const { request, node } = heir;
    for (let times = 0; times < this.parts.times; times++) {
      const taken = model.reference.takeOver(request, request.fingerprint);
      expect(await node.takeOver(request, request.fingerprint)).toBe(taken);
      heir.triedToBegin = true;
      heir.begun = taken === 'ok';
    }
  }
}

/** Several at once: whoever wins, the answers are those of some order, and the winner's comes first in it. */
class RaceForScope extends Checked<{ scope: number; racers: number }> {
  protected async act(model: Model, world: World) {
    const { scope, racers: length } = this.parts;
    const racers = Array.from({ length }, (_, node) =>
      model.newClaimant(world, { scope, node, otherRequest: false }),
    );
    const claims = await Promise.all(racers.map(({ request, node }) => node.claim(request)));
    const order = racers.map((racer, i) => ({ racer, kind: kindOf(claims[i] as Claim) }));
    const won = ({ kind }: { kind: string }) => kind === 'claimed' || kind === 'took_over';
    for (const { racer, kind } of order.toSorted((a, b) => Number(won(b)) - Number(won(a))))
      expect(kind).toBe(model.reference.claim(racer.request));
  }
}

/** An owner's write, late ones and those of who never owned included. */
abstract class OwnersWrite extends Checked<{ writer: number; times: number }> {
  override check(model: Readonly<Model>) {
    const claimant = model.writer(this.parts.writer);
    return claimant !== undefined && this.allows(claimant);
  }
  /** Would an engine send it? */
  protected allows(_: Claimant): boolean {
    return true;
  }
  protected async act(model: Model) {
    const claimant = model.writer(this.parts.writer) as Claimant;
    for (let times = 0; times < this.parts.times; times++)
      expect(await this.write(claimant.node, claimant)).toBe(this.expected(model, claimant));
  }
  protected abstract write(store: Store, claimant: Claimant): Promise<string>;
  protected abstract expected(model: Model, claimant: Claimant): string;
}

class Begin extends OwnersWrite {
  // An engine begins a token once. test/contract/fencing.ts says what comes of a second begin.
  protected override allows = (claimant: Claimant) => !claimant.triedToBegin;
  protected write = (store: Store, claimant: Claimant) => store.begin(claimant.request);
  protected expected({ reference }: Model, claimant: Claimant) {
    const begun = reference.begin(claimant.request);
    claimant.triedToBegin = true;
    claimant.begun = begun === 'ok';
    return begun;
  }
}

class Renew extends OwnersWrite {
  // Before it has begun an owner has no lease, and one that gave up has none any more.
  protected override allows = ({ begun, gaveUp }: Claimant) => begun && !gaveUp;
  protected write = (store: Store, { request }: Claimant) => store.renew(request);
  protected expected = ({ reference }: Model, { request }: Claimant) => reference.renew(request);
}

class Settle extends OwnersWrite {
  protected write = (store: Store, { request, result }: Claimant) => store.settle(request, result);
  protected expected = ({ reference }: Model, { request, result }: Claimant) =>
    reference.settle(request, result);
}

class Release extends OwnersWrite {
  protected write = (store: Store, { request }: Claimant) => store.release(request);
  protected expected = ({ reference }: Model, { request }: Claimant) => reference.release(request);
}

class MarkInDoubt extends OwnersWrite {
  protected write = (store: Store, { request }: Claimant) => store.markInDoubt(request);
  protected expected({ reference }: Model, claimant: Claimant) {
    claimant.gaveUp = true;
    return reference.markInDoubt(claimant.request);
  }
}

/** Its process is gone: it never writes again. */
class Crash extends Checked<{ writer: number }> {
  override check(model: Readonly<Model>) {
    return model.writer(this.parts.writer) !== undefined;
  }
  protected async act(model: Model) {
    (model.writer(this.parts.writer) as Claimant).crashed = true;
  }
}

class Pass extends Checked<{ ms: number }> {
  /**
   * Not to where a record is gone and its owner's lease is not: there a redlock lease stands in the way of the next
   * owner's for a while, and the stores differ in when that one counts as gone. Liveness only, see ADR 1.
   */
  override check({ reference, scopes }: Readonly<Model>) {
    const nowMs = reference.nowMs + this.parts.ms;
    const standing = scopes.map((scope) => reference.at(scope)).filter((stands) => stands !== undefined);
    return standing.every(({ aliveUntilMs, expiresAtMs }) => nowMs < expiresAtMs || aliveUntilMs <= nowMs);
  }
  protected async act({ reference }: Model, world: World) {
    reference.nowMs += this.parts.ms;
    await world.pass(this.parts.ms);
  }
}

const note = { by: 'ada', reason: 'the books show it' };

/** By an operator who has seen what stands, or what stood once. */
class Resolve extends Checked<{ scope: number; as: 'settled' | 'released'; seen: number | null }> {
  override check(model: Readonly<Model>) {
    return this.#token(model) !== undefined;
  }
  #token(model: Readonly<Model>) {
    const { scope, seen } = this.parts;
    if (seen === null) return model.reference.at(model.scope(scope))?.token;
    return model.claimants[seen % model.claimants.length]?.request.token;
  }
  protected async act(model: Model, { nodes }: World) {
    const [scope, seen] = [model.scope(this.parts.scope), this.#token(model)];
    if (!seen) return;
    const resolution: Resolution =
      this.parts.as === 'settled' ? { as: 'settled', settlement: paid('by hand') } : { as: 'released' };
    const resolved = await nodes[0]?.resolve(scope, seen, resolution, note);
    expect(resolved).toBe(model.reference.resolve(scope, seen, resolution));
  }
}

/** A listing of what needs somebody holds what is in doubt and what was left executing, and nothing else. */
class ListInDoubt extends Checked<object> {
  protected async act({ reference, scopes }: Model, { nodes }: World) {
    const listing = await nodes[0]?.list({ inDoubt: true, limit: 1000 });
    const doubtful = scopes.filter((scope) => {
      const stands = reference.at(scope);
      if (stands?.state === 'executing') return !reference.isAlive(stands);
      return stands?.state === 'in_doubt';
    });
    expect(listing?.records.map(({ scope }) => scope).toSorted()).toEqual(doubtful.toSorted());
  }
}

const index = fc.nat({ max: 2 });
const times = fc.oneof({ weight: 3, arbitrary: fc.constant(1) }, { weight: 1, arbitrary: fc.constant(2) });
const seldom = fc.nat({ max: 5 }).map((number) => number === 0);
/** The youngest claimant most of the time. */
const writer = fc.oneof(
  { weight: 3, arbitrary: fc.constant(0) },
  { weight: 1, arbitrary: fc.nat({ max: 9 }) },
);
const write = fc.record({ writer, times });
const claim = fc.record({ scope: index, node: index, otherRequest: seldom, times });
const racers = fc.integer({ min: 2, max: 5 });
const as = fc.constantFrom('settled' as const, 'released' as const);
const seen = fc.option(fc.nat({ max: 9 }));

const { leaseMs, retentionMs } = TIMES;
/** Less than a lease, more than one, most of the retention, all of it. No sum of them comes near either limit. */
const ms = fc.constantFrom(20_000, leaseMs + 10_000, 600_000, retentionMs + 10_000);

/** A command: how often it comes, and how it is made. A new command of the store is a class above and a line here. */
const commands: [weight: number, arbitrary: fc.Arbitrary<Command>][] = [
  [3, claim.map((parts) => new ClaimScope(parts))],
  [1, claim.map((parts) => new TakeOver(parts))],
  [1, fc.record({ scope: index, racers }).map((parts) => new RaceForScope(parts))],
  [3, fc.record({ writer, times: fc.constant(1) }).map((parts) => new Begin(parts))],
  [1, write.map((parts) => new Renew(parts))],
  [1, write.map((parts) => new Settle(parts))],
  [1, write.map((parts) => new Release(parts))],
  [1, write.map((parts) => new MarkInDoubt(parts))],
  [1, fc.record({ writer }).map((parts) => new Crash(parts))],
  [2, fc.record({ ms }).map((parts) => new Pass(parts))],
  [1, fc.record({ scope: index, as, seen }).map((parts) => new Resolve(parts))],
  [1, fc.constant({}).map((parts) => new ListInDoubt(parts))],
];

export const allCommands = commands.flatMap(([weight, arbitrary]) =>
  Array<typeof arbitrary>(weight).fill(arbitrary),
);
