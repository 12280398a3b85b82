import { describe, expect, it } from 'vitest';
import { systemClock } from '../../src/lib/clock.ts';
import { duplicateOf, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { all } from './listing.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring } from './states.ts';

const HOURS_MS = 3_600_000;
/** The lifetimes of a reader that is configured far shorter, or far longer, than the gateway that wrote the record. */
const SHORT = { leaseMs: 1, retentionMs: 1, inDoubtRetentionMs: 1 };
const LONG = { leaseMs: HOURS_MS, retentionMs: HOURS_MS, inDoubtRetentionMs: HOURS_MS };
const note = { by: 'ada', reason: 'the books show it' };

export function recordLifetimes(backend: Backend): void {
  describe.concurrent('a record’s own lifetimes', () => {
    it('keep its owner alive for readers with a shorter lease', async () => {
      await using nodes = new Nodes(backend, { alone: true });
      const [store, reader] = [await nodes.open(), await nodes.open(SHORT)];
      const owner = await bring(store, 'executing');
      const control = await bring(reader, 'executing');
      await until(async () => (await reader.get(control.scope)) === undefined);
      expect(await reader.peek(owner)).toEqual({ kind: 'in_flight' });
      expect(await reader.start(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
      const { as } = { as: 'released' as const };
      expect(await reader.resolve(owner.scope, owner.token, { as }, note)).toBe('alive');
      const { records } = await all(reader, { inDoubt: false });
      expect(records).toMatchObject([{ scope: owner.scope, ownerGone: false }]);
    });

    it('show readers with a longer lease that its owner is dead', async () => {
      await using nodes = new Nodes(backend, { alone: true });
      const leaseMs = 200;
      const [store, reader] = [await nodes.open({ leaseMs }), await nodes.open(LONG)];
      const startedMs = performance.now();
      const owner = await bring(store, 'executing');
      const { records } = await until(async () => {
        const listing = await all(reader, { inDoubt: true });
        return listing.records.length > 0 ? listing : undefined;
      });
      expect(performance.now() - startedMs).toBeGreaterThanOrEqual(leaseMs - 1);
      expect(records).toMatchObject([{ scope: owner.scope, ownerGone: true }]);
      expect((await reader.peek(owner)).kind).toBe('in_doubt');
      expect((await reader.start(duplicateOf(owner))).kind).toBe('in_doubt');
    });

    it('keep a result for readers with a shorter retention', async () => {
      await using nodes = new Nodes(backend);
      const [store, reader] = [await nodes.open(), await nodes.open(SHORT)];
      const owners = [await bring(store, 'completed'), await bring(store, 'in_doubt')];
      const control = await bring(reader, 'executing');
      await until(async () => (await reader.get(control.scope)) === undefined);
      const kinds = await Promise.all(owners.map(async (owner) => (await reader.peek(owner)).kind));
      expect(kinds).toEqual(['completed', 'in_doubt']);
    });

    it('decide when a result expires, not those of the gateway that completes', async () => {
      await using nodes = new Nodes(backend);
      const retentionMs = 4000;
      const [store, other] = [await nodes.open({ retentionMs }), await nodes.open(LONG)];
      const startedMs = performance.now();
      const owner = await bring(store, 'executing');
      expect(await other.complete(owner, paid())).toBe('ok');
      const lifetimes = { retentionMs };
      expect(await other.get(owner.scope)).toMatchObject({ lifetimes, gatewayId: 'gateway-test' });
      await until(async () => (await other.get(owner.scope)) === undefined);
      expect(performance.now() - startedMs).toBeGreaterThanOrEqual(retentionMs - 1);
    });

    it.each(['complete', 'resolve'] as const)(
      'decide how long a key that was in doubt lives after %s',
      async (how) => {
        await using nodes = new Nodes(backend);
        const inDoubtRetentionMs = 4000;
        const [store, other] = [await nodes.open({ inDoubtRetentionMs }), await nodes.open(LONG)];
        const owner = await bring(store, 'in_doubt');
        const resolution = { as: 'completed' as const, completion: paid() };
        const writtenMs = performance.now();
        const written =
          how === 'complete'
            ? other.complete(owner, paid())
            : other.resolve(owner.scope, owner.token, resolution, note);
        expect(await written).toBe('ok');
        await until(async () => (await other.get(owner.scope)) === undefined);
        expect(performance.now() - writtenMs).toBeGreaterThanOrEqual(inDoubtRetentionMs - 1);
      },
    );

    it('become those of the gateway that restarts it, because that gateway renews the lease', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open({ leaseMs: 50 });
      const successors = await nodes.open({}, systemClock, 'gateway-2');
      const owner = await bring(store, 'in_doubt');
      const successor = duplicateOf(owner);
      expect(await successors.restart(successor)).toBe('ok');
      const control = await bring(store, 'executing');
      await until(async () => (await store.peek(control)).kind === 'in_doubt');
      expect(await store.start(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
      expect(await store.peek(owner)).toEqual({ kind: 'in_flight' });
    });
  });
}
