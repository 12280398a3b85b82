import { describe, expect, it } from 'vitest';
import { StoreUnavailable } from '../../src/store/contract.ts';
import { duplicateOf, otherOf } from '../support/requests.ts';
import { ownersWrites, write } from './fencing.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring, stages } from './states.ts';

export function unreadable(backend: Backend): void {
  const rows = backend.damages.flatMap(([what, damage, from = stages]) =>
    from.map((stage) => [what, stage, damage] as const),
  );
  describe('a record that cannot be read', () => {
    it.each(rows)(
      '(%s, where it was %s) is never treated as absent and never taken over',
      async (_, from, damage) => {
        await using nodes = new Nodes(backend);
        // With such a short lease every owner counts as dead.
        const store = await nodes.open({ leaseMs: 1 });
        const owner = await bring(store, from);
        await damage(nodes.place, owner.scope);
        for (let round = 0; round < 3; round++) {
          for (const request of [duplicateOf(owner), otherOf(owner)]) {
            await expect(store.start(request)).rejects.toThrow(StoreUnavailable);
            await expect(store.peek(request)).rejects.toThrow(StoreUnavailable);
          }
          await expect(store.get(owner.scope)).rejects.toThrow(StoreUnavailable);
          const stranger = duplicateOf(owner);
          const writes = [
            ...ownersWrites.map((name) => () => write(store, name, stranger)),
            () => store.restart(stranger),
            () => store.resolve(owner.scope, stranger.token, { as: 'released' }, note),
          ];
          for (const each of writes) expect(await each().catch((error: unknown) => error)).toSatisfy(refusal);
        }
      },
    );
  });
}

const note = { by: 'ada', reason: 'a' };

const refusal = (answer: unknown) =>
  answer === 'stale' || answer === 'changed' || answer instanceof StoreUnavailable;
