import { describe, expect, it } from 'vitest';
import { StoreUnavailable } from '../../src/idempotency/store.ts';
import { duplicateOf, otherOf, paid } from '../support/requests.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring, type Stage, stages } from './states.ts';

const noise = Buffer.from(Array.from({ length: 200 }, (_, number) => (number * 97 + 13) % 256));

function withByte(record: Buffer, at: number, byte: number): Buffer {
  const changed = Buffer.from(record);
  changed[at] = byte;
  return changed;
}

const damages: [what: string, from: Stage, damage: (record: Buffer) => Buffer][] = [
  ['nothing', 'claimed', () => Buffer.alloc(0)],
  ['one byte', 'executing', (record) => record.subarray(0, 1)],
  ['zeros', 'settled', (record) => Buffer.alloc(record.length)],
  ['noise', 'executing', () => noise],
  ['text', 'in_doubt', () => Buffer.from('settled')],
  ...stages.flatMap((from): typeof damages => [
    ['another version', from, (record) => withByte(record, 0, 2)],
    ['an unknown state', from, (record) => withByte(record, 1, 0x78)],
    ['a record cut in its head', from, (record) => record.subarray(0, 60)],
    ['a record cut in its texts', from, (record) => record.subarray(0, 75)],
  ]),
  [
    'a settled record cut before its status',
    'settled',
    (record) => record.subarray(0, record.indexOf(0xc9) - 1),
  ],
];

export function unreadable(backend: Backend): void {
  describe('a record that cannot be read', () => {
    it.each(damages)('(%s, where it was %s) is never absent and never won', async (_, from, damage) => {
      await using nodes = new Nodes(backend);
      // With so short a lease, whatever can be taken over is.
      const store = await nodes.open({ leaseMs: 1 });
      const owner = await bring(store, from);
      await nodes.rewrite(owner.scope, damage);
      const stranger = duplicateOf(owner);
      for (let round = 0; round < 3; round++) {
        await expect(store.claim(duplicateOf(owner))).rejects.toThrow(StoreUnavailable);
        await expect(store.claim(otherOf(owner))).rejects.toThrow(StoreUnavailable);
        await expect(store.get(owner.scope)).rejects.toThrow(StoreUnavailable);
        for (const write of ['begin', 'settle', 'release', 'markInDoubt'] as const) {
          const answer = store[write](stranger, paid()).catch((error: unknown) => error);
          expect([await answer]).toContainEqual(expect.toSatisfy(refusal));
        }
      }
    });
  });
}

const refusal = (answer: unknown) => answer === 'stale' || answer instanceof StoreUnavailable;
