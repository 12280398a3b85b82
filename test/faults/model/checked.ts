import type { AsyncCommand } from 'fast-check';
import { expect } from 'vitest';
import type { Scope } from '../../../src/lib/brands.ts';
import type { Model } from './state.ts';
import type { World } from './worlds.ts';

export type Command = AsyncCommand<Model, World>;

/** After every command, all scopes are read from another node than the one that wrote. */
export abstract class Checked<Parts> implements Command {
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
    for (const request of model.requests) {
      const peeked = await world.nodes.at(-2)?.peek(request);
      expect(peeked?.kind).toBe(model.reference.peek(request));
      if (peeked && 'requestId' in peeked)
        expect(peeked.requestId).toBe(model.reference.at(request.scope)?.requestId);
    }
    // After the peeks, because they must not change anything.
    await Promise.all(model.scopes.map((scope) => looksAlike(model, world, scope)));
    await countsAlike(model, world);
  }

  protected abstract act(model: Model, world: World): Promise<void>;
}

/** The count of the keys in doubt, whatever has opened and closed records before. */
async function countsAlike({ reference, scopes, resolutions }: Model, { nodes }: World): Promise<void> {
  const expected = { inDoubt: 0, ownerGone: 0 };
  for (const scope of scopes) {
    const record = reference.at(scope);
    const isGone = record?.state === 'executing' && !reference.isAlive(record);
    if (isGone || record?.state === 'in_doubt') expected.inDoubt++;
    if (isGone) expected.ownerGone++;
  }
  const counted = await nodes.at(-2)?.countDoubts();
  expect([...(counted?.operations ?? [])]).toEqual(expected.inDoubt > 0 ? [['withdraw', expected]] : []);
  expect(counted?.oldestSinceMs === undefined).toBe(expected.inDoubt === 0);
  const numbers = counted?.resolutions.map(({ as, number }) => [as, number]) ?? [];
  expect(Object.fromEntries(numbers)).toEqual(resolutions);
}

async function looksAlike(model: Model, { nodes }: World, scope: Scope): Promise<void> {
  const [expected, actual] = [model.reference.at(scope), await nodes.at(-1)?.get(scope)];
  expect(actual?.state).toEqual(expected?.state);
  expect(actual?.completion).toEqual(expected?.completion);
  expect(actual?.fingerprint).toEqual(expected?.fingerprint);
  expect(actual?.requestId).toEqual(expected?.requestId);
  expect(actual?.wasInDoubt).toEqual(expected?.wasInDoubt);
  // A resolution writes a new token that no attempt has. Only the difference to the tokens of attempts matters.
  const tokens = model.attempts.map(({ execution }) => execution.token);
  expect(tokens.map((token) => actual?.token.equals(token))).toEqual(
    tokens.map((token) => expected?.token.equals(token)),
  );
}
