import { randomBytes } from 'node:crypto';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import type { Execution, Store } from '../../src/idempotency/store.ts';
import { systemClock } from '../../src/kernel/clock.ts';
import type { Completion } from '../../src/kernel/exchange.ts';
import { duplicateOf, newRequest, otherOf, paid } from '../support/requests.ts';
import { all } from './listing.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring, replayOf } from './states.ts';
import { expiryOf, storedBytes } from './stored-bytes.ts';

const note = { by: 'ada', reason: 'the contract has ended' };
const TOMBSTONE: Completion = { kind: 'tombstone', status: 201 };
const TURNS = 10;

/** Purges the scope under the execution's token. */
const purge = (store: Store, { scope, token }: Execution) => store.purge(scope, token, note);

export function purges(backend: Backend): void {
  describe('a purge', () => {
    it('removes the response and nothing else, and no later write brings it back', async () => {
      await using nodes = new Nodes(backend, { alone: true });
      const [store, other] = [await nodes.open(), await nodes.open()];
      const owner = await bring(store, 'completed');
      const before = await store.get(owner.scope);
      expect((await all(store, { inDoubt: false })).records).toMatchObject([{ hasResponse: true }]);
      expect(await purge(other, owner)).toBe('ok');
      expect(await store.get(owner.scope)).toEqual({ ...before, completion: TOMBSTONE });
      expect((await all(store, { inDoubt: false })).records).toMatchObject([{ hasResponse: false }]);
      const later: [() => Promise<unknown>, unknown][] = [
        [() => store.start(duplicateOf(owner)), replayOf(TOMBSTONE, owner)],
        [() => store.peek(owner), replayOf(TOMBSTONE, owner)],
        [() => store.start(otherOf(owner)), { kind: 'mismatch' }],
        [() => store.restart(duplicateOf(owner)), 'changed'],
        // The owner repeats a complete whose answer was lost.
        [() => store.complete(owner, paid()), 'ok'],
        [() => store.complete(duplicateOf(owner), paid()), 'stale'],
        [() => store.release(owner), 'stale'],
        [() => store.markInDoubt(owner), 'stale'],
        [() => store.resolve(owner.scope, owner.token, { as: 'released' }, note), 'changed'],
      ];
      for (const [call, answer] of later) expect(await call()).toEqual(answer);
      expect((await store.get(owner.scope))?.completion).toEqual(TOMBSTONE);
    });

    it('needs no encryption key, and leaves nothing of an encrypted response', async () => {
      await using nodes = new Nodes(backend);
      const encryption = { keys: [{ id: 'lost', secret: randomBytes(32).toString('hex') }] };
      const owner = await bring(await nodes.open({}, undefined, undefined, encryption), 'completed');
      const store = await nodes.open();
      expect(await purge(store, owner)).toBe('ok');
      expect(await store.get(owner.scope)).not.toHaveProperty('encryptionKeyId');
      expect(await store.start(duplicateOf(owner))).toEqual(replayOf(TOMBSTONE, owner));
    });

    it('of a record that is not completed under its token changes nothing', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const completed = await bring(store, 'completed');
      const refused = [
        await bring(store, 'executing'),
        await bring(store, 'in_doubt'),
        newRequest(),
        duplicateOf(completed),
      ];
      for (const request of refused) {
        const before = await store.get(request.scope);
        expect(await purge(store, request)).toBe('changed');
        expect(await store.get(request.scope)).toEqual(before);
        expect(await store.audit(request.scope)).toEqual([]);
      }
    });

    it('leaves an audit record, and a purge of a tombstone none', async () => {
      await using nodes = new Nodes(backend, { alone: true });
      let wallMs = 1_700_000_000_000;
      const store = await nodes.open({}, { ...systemClock, wallMs: () => wallMs });
      const owner = await bring(store, 'completed');
      wallMs += 5000;
      expect(await purge(store, owner)).toBe('ok');
      wallMs += 5000;
      expect(await purge(store, owner)).toBe('ok');
      const { merchant, operation, key, requestId } = owner;
      const [createdAtMs, atMs] = [wallMs - 10_000, wallMs - 5000];
      const from = { state: 'completed', merchant, operation, key, requestId, createdAtMs };
      expect(await store.audit(owner.scope)).toEqual([
        { ...note, atMs, from: { ...from, changedAtMs: createdAtMs }, to: { as: 'purged' } },
      ]);
      expect((await storedBytes(nodes.place, owner.scope)).includes('"success"')).toBe(
        // The log of SQLite still has the old pages, until the store is closed.
        nodes.place.kind === 'sqlite',
      );
    });

    it('keeps the lifetime of the record', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const owner = await bring(store, 'completed');
      const expiry = await expiryOf(nodes.place, owner.scope);
      expect(expiry).toBeGreaterThan(0);
      expect(await purge(store, owner)).toBe('ok');
      expect(await expiryOf(nodes.place, owner.scope)).toBe(expiry);
    });

    it('and the writes of others have one order', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const owners = await Promise.all(Array.from({ length: 40 }, () => bring(store, 'in_doubt')));
      await Promise.all(
        owners.map(async (owner, number) => {
          const purgeLater = async () => {
            for (let turn = 0; turn < number % TURNS; turn++) await nextTurn();
            return await purge(other, owner);
          };
          const write = () =>
            number % 2
              ? store.complete(owner, paid())
              : store.resolve(owner.scope, owner.token, { as: 'completed', completion: paid() }, note);
          const [written, purged] = await Promise.all([write(), purgeLater()]);
          expect(written).toBe('ok');
          // A resolution replaces the token that the purge names.
          if (number % 2 === 0) expect(purged).toBe('changed');
          const completion = purged === 'ok' ? TOMBSTONE : paid();
          expect(await store.start(duplicateOf(owner))).toEqual(replayOf(completion, owner));
        }),
      );
    });

    it('that many send at once leaves one audit record', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const owner = await bring(store, 'completed');
      const answers = await Promise.all(
        Array.from({ length: 20 }, (_, number) => purge(number % 2 ? store : other, owner)),
      );
      expect(answers).toEqual(Array(20).fill('ok'));
      expect(await store.audit(owner.scope)).toHaveLength(1);
    });
  });
}
