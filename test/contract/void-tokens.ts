import { describe, expect, it } from 'vitest';
import { type Execution, type Store, StoreUnavailable } from '../../src/idempotency/store.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring, replayOf } from './states.ts';

const VOID = { voidToken: true };
const ROUNDS = 40;

/** The refusal of a voided token: the caller has nothing to take back. */
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
      expect(await store.release(lost, VOID)).toBe('stale');
      for (const node of [store, other]) await expectRefused(node.start(lost));
      expect(await store.get(lost.scope)).toBeUndefined();
      expect(await store.peek(lost)).toEqual({ kind: 'absent' });
      await bring(other, 'completed', duplicateOf(lost));
    });

    it('does not start again when its start was released', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const owner = await bring(store, 'executing');
      expect(await store.release(owner, VOID)).toBe('ok');
      expect(await store.get(owner.scope)).toBeUndefined();
      for (const node of [store, other]) await expectRefused(node.start(owner));
      expect(await store.get(owner.scope)).toBeUndefined();
      expect(await store.release(owner, VOID)).toBe('stale');
      await bring(other, 'executing', duplicateOf(owner));
    });

    it('at once with its start leaves the scope absent, whichever comes first', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      await Promise.all(
        Array.from({ length: ROUNDS }, async (_, number) => {
          const request = newRequest();
          const start = () => store.start(request).catch((error: unknown) => error);
          const release = () => other.release(request, VOID);
          if (number % 2) await Promise.all([start(), release()]);
          else await Promise.all([release(), start()]);
          expect(await store.get(request.scope)).toBeUndefined();
          await expectRefused(store.start(request));
        }),
      );
    });

    it('does not restart when its restart arrives after its mark of doubt', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const first = await bring(store, 'in_doubt');
      const before = await store.get(first.scope);
      const lost = duplicateOf(first);
      expect(await store.markInDoubt(lost, VOID)).toBe('stale');
      for (const node of [store, other]) await expectRefused(node.restart(lost));
      expect(await store.get(first.scope)).toEqual(before);
      expect(await other.restart(duplicateOf(first))).toBe('ok');
    });

    it('does not restart again when its restart was marked in doubt', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const first = await bring(store, 'in_doubt');
      const heir = duplicateOf(first);
      expect(await store.restart(heir)).toBe('ok');
      expect(await store.markInDoubt(heir, VOID)).toBe('ok');
      for (const node of [store, other]) await expectRefused(node.restart(heir));
      expect(await store.get(first.scope)).toMatchObject({ state: 'in_doubt', token: heir.token });
      expect(await other.restart(duplicateOf(first))).toBe('ok');
    });

    it('at once with its restart leaves the scope in doubt, whichever comes first', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const owners = await Promise.all(Array.from({ length: ROUNDS }, () => bring(store, 'in_doubt')));
      await Promise.all(
        owners.map(async (owner, number) => {
          const heir = duplicateOf(owner);
          const restart = () => store.restart(heir).catch((error: unknown) => error);
          const mark = () => other.markInDoubt(heir, VOID);
          if (number % 2) await Promise.all([restart(), mark()]);
          else await Promise.all([mark(), restart()]);
          expect((await store.get(owner.scope))?.state).toBe('in_doubt');
          await expectRefused(store.restart(heir));
        }),
      );
    });

    it('changes nothing about the record of another owner', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const lost = newRequest();
      const voids: ((node: Store, execution: Execution) => Promise<unknown>)[] = [
        (node, execution) => node.release(execution, VOID),
        (node, execution) => node.markInDoubt(execution, VOID),
      ];
      const owner = await bring(store, 'executing', duplicateOf(lost));
      for (const voiding of voids) expect(await voiding(store, lost)).toBe('stale');
      expect(await store.peek(lost)).toEqual({ kind: 'in_flight' });
      // The store may refuse the token or tell of the record, but it never starts.
      const answer = await store.start(lost).catch((error: unknown) => error);
      expect(answer).not.toEqual({ kind: 'started' });
      expect(await store.get(owner.scope)).toMatchObject({ state: 'executing', token: owner.token });
      expect(await store.complete(owner, paid())).toBe('ok');
      for (const voiding of voids) expect(await voiding(store, owner)).toBe('stale');
      expect(await store.start(duplicateOf(lost))).toEqual(replayOf(paid(), owner));
    });

    it('may still complete: the backend has executed', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const owner = newRequest();
      expect(await store.release(owner, VOID)).toBe('stale');
      expect(await store.complete(owner, paid())).toBe('ok');
      expect(await store.start(duplicateOf(owner))).toEqual(replayOf(paid(), owner));
    });

    it('stays void for a node that opens later', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const lost = newRequest();
      await store.release(lost, VOID);
      await store.close();
      await expectRefused((await nodes.open()).start(lost));
    });
  });
}
