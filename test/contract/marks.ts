import { describe, expect, it } from 'vitest';
import { type Backend, Nodes } from './nodes.ts';

export function marks(backend: Backend): void {
  describe('the mark', () => {
    it('has a random id, and a count that grows with every mark of any node', async () => {
      await using nodes = new Nodes(backend, { alone: true });
      await using others = new Nodes(backend, { alone: true });
      const [a, b, another] = [await nodes.open(), await nodes.open(), await others.open()];
      expect(await a.readMark('protect')).toBeUndefined();
      const first = await a.mark('protect');
      expect(first).toEqual({ id: expect.stringMatching(/^[0-9a-f]{32}$/), count: 1, otherMode: false });
      expect(await b.mark('protect')).toEqual({ ...first, count: 2 });
      expect(await a.readMark('protect')).toEqual({ ...first, count: 2 });
      const counts = await Promise.all([a, b, a, b].map((store) => store.mark('protect')));
      expect(counts.map(({ count }) => count).sort()).toEqual([3, 4, 5, 6]);
      expect((await another.mark('protect')).id).not.toBe(first.id);
      // It is no record.
      expect((await a.list({ inDoubt: false, limit: 100 })).records).toEqual([]);
    });

    it('says whether gateways in the other mode use the store, also when one of them has ended', async () => {
      await using nodes = new Nodes(backend, { alone: true });
      const [protects, observes, ends] = [await nodes.open(), await nodes.open(), await nodes.open()];
      expect((await observes.mark('observe')).otherMode).toBe(false);
      expect((await protects.readMark('protect'))?.otherMode).toBe(true);
      expect((await protects.mark('protect')).otherMode).toBe(true);
      expect((await observes.readMark('observe'))?.otherMode).toBe(true);
      expect(await ends.mark('observe')).toMatchObject({ count: 3, otherMode: true });
      await ends.close();
      expect(await protects.mark('protect')).toMatchObject({ count: 4, otherMode: true });
    });
  });
}
