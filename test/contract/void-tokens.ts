import { describe, expect, it } from 'vitest';
import { StoreUnavailable } from '../../src/store/contract.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring, replayOf } from './states.ts';

const ROUNDS = 40;

/** The refusal of a voided token. Nothing was written, so the caller has nothing to undo. */
async function expectRefused(answer: Promise<unknown>): Promise<void> {
  const error = await answer.catch((thrown: unknown) => thrown);
  expect(error).toBeInstanceOf(StoreUnavailable);
  expect(error).toMatchObject({ maybeWritten: false, message: expect.stringMatching(/given up/) });
}

export function voidTokens(backend: Backend): void {
  describe('a voided token', () => {
    it('does not start when its start arrives after its release', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const lost = newRequest();
      expect(await store.takeBack(lost)).toBe('stale');
      for (const node of [store, other]) await expectRefused(node.start(lost));
      expect(await store.get(lost.scope)).toBeUndefined();
      expect(await store.peek(lost)).toEqual({ kind: 'absent' });
      await bring(other, 'completed', duplicateOf(lost));
    });

    it('does not start again when its start was released', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const owner = await bring(store, 'executing');
      expect(await store.takeBack(owner)).toBe('ok');
      expect(await store.get(owner.scope)).toBeUndefined();
      for (const node of [store, other]) await expectRefused(node.start(owner));
      expect(await store.get(owner.scope)).toBeUndefined();
      expect(await store.takeBack(owner)).toBe('stale');
      await bring(other, 'executing', duplicateOf(owner));
    });

    it('whose start is under way leaves the scope absent, in either order', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      await Promise.all(
        Array.from({ length: ROUNDS }, async (_, number) => {
          const request = newRequest();
          const start = () => store.start(request).catch((error: unknown) => error);
          const release = () => other.takeBack(request);
          if (number % 2) await Promise.all([start(), release()]);
          else await Promise.all([release(), start()]);
          expect(await store.get(request.scope)).toBeUndefined();
          await expectRefused(store.start(request));
        }),
      );
    });

    it('changes nothing about the record of another owner', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const lost = newRequest();
      const owner = await bring(store, 'executing', duplicateOf(lost));
      expect(await store.takeBack(lost)).toBe('stale');
      expect(await store.peek(lost)).toEqual({ kind: 'in_flight' });
      // The store may refuse the token or answer what the record means, but it never starts.
      const answer = await store.start(lost).catch((error: unknown) => error);
      expect(answer).not.toEqual({ kind: 'started' });
      expect(await store.get(owner.scope)).toMatchObject({ state: 'executing', token: owner.token });
      expect(await store.complete(owner, paid())).toBe('ok');
      expect(await store.takeBack(owner)).toBe('stale');
      expect(await store.start(duplicateOf(lost))).toEqual(replayOf(paid(), owner));
    });

    it('can still complete, because the backend has executed', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const owner = newRequest();
      expect(await store.takeBack(owner)).toBe('stale');
      expect(await store.complete(owner, paid())).toBe('ok');
      expect(await store.start(duplicateOf(owner))).toEqual(replayOf(paid(), owner));
    });

    it('stays void for a store that opens later', async () => {
      await using nodes = new Nodes(backend, { alone: true });
      const store = await nodes.open();
      const lost = newRequest();
      await store.takeBack(lost);
      await store.close();
      await expectRefused((await nodes.open()).start(lost));
    });
  });
}
