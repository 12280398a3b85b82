import { randomBytes } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import type { Store } from '../../src/ledger/ledger.ts';
import type { Completion } from '../../src/lib/exchange.ts';
import { type Execution, UnreadableRecord } from '../../src/store/contract.ts';
import type { Encryption, SealedResponse } from '../../src/store/response-cipher.ts';
import { duplicateOf, newRequest, otherOf } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { all } from './listing.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring, replayOf } from './states.ts';
import { reseal, storedBytes } from './stored-bytes.ts';

const newKey = (id: string) => ({ id, secret: randomBytes(32).toString('base64') });
const [one, two] = [newKey('one'), newKey('two')];
const ONE: Encryption = { keys: [one] };

const SECRETS = ['0123456789-account', 'reference-0123456789'];
const everyByte = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));

/** A response with a secret in its headers and one in its body. */
const secret = (status = 201): Completion => ({
  kind: 'response',
  response: {
    status,
    headers: [
      'Content-Type',
      'application/json',
      'X-Reference',
      `${SECRETS[1]} ${everyByte.toString('latin1')}`,
    ],
    body: Buffer.concat([Buffer.from(`{"account":"${SECRETS[0]}"}`), everyByte]),
  },
});

export function encryption(backend: Backend): void {
  const open = (nodes: Nodes, ring?: Encryption, times = {}) => nodes.open(times, undefined, undefined, ring);

  async function complete(store: Store, completion = secret()): Promise<Execution> {
    const owner = await bring(store, 'executing');
    expect(await store.complete(owner, completion)).toBe('ok');
    return owner;
  }

  async function expectReplay(store: Store, owner: Execution, completion = secret()): Promise<void> {
    expect(await store.start(duplicateOf(owner))).toEqual(replayOf(completion, owner));
    expect(await store.peek(owner)).toEqual(replayOf(completion, owner));
    expect(await store.get(owner.scope)).toMatchObject({ state: 'completed', completion });
  }

  /** A record that cannot be read is never absent, and is never started again. */
  async function expectUnreadable(store: Store, owner: Execution, why: RegExp | string): Promise<void> {
    const [request, other] = [duplicateOf(owner), otherOf(owner)];
    await expect(store.start(request)).rejects.toThrow(UnreadableRecord);
    await expect(store.peek(request)).rejects.toThrow(why);
    // The fingerprint is not encrypted.
    expect(await store.start(other)).toEqual({ kind: 'mismatch' });
    for (const execution of [request, other]) expect(await store.restart(execution)).toBe('changed');
    await expect(store.get(owner.scope)).rejects.toThrow(why);
  }

  describe('an encrypted response', () => {
    it.each<[string, (store: Store) => Promise<Execution>]>([
      ['completed', complete],
      [
        'completed after its record was removed',
        async (store) => {
          const owner = newRequest();
          expect(await store.complete(owner, secret())).toBe('ok');
          return owner;
        },
      ],
      [
        'resolved by an operator',
        async (store) => {
          const owner = await bring(store, 'in_doubt');
          const note = { by: 'ada', reason: 'in the books' };
          const resolution = { as: 'completed', completion: secret() } as const;
          expect(await store.resolve(owner.scope, owner.token, resolution, note)).toBe('ok');
          return owner;
        },
      ],
    ])('(%s) is replayed byte for byte, and the store holds nothing of it in clear', async (_, write) => {
      await using nodes = new Nodes(backend, { alone: true });
      const [store, other] = [await open(nodes, ONE), await open(nodes, ONE)];
      const owner = await write(store);
      await expectReplay(other, owner);
      expect(await other.get(owner.scope)).toMatchObject({ encryptionKeyId: 'one', key: owner.key });
      const bytes = await storedBytes(nodes.place, owner.scope);
      expect(bytes.includes(owner.key)).toBe(true);
      for (const text of SECRETS) expect(bytes.includes(text)).toBe(false);
      // Both assertions above would hold if the bytes were elsewhere.
      const clear = await complete(await open(nodes));
      const clearBytes = await storedBytes(nodes.place, clear.scope);
      for (const text of SECRETS) expect(clearBytes.includes(text)).toBe(true);
    });

    it('of any size has a nonce of its own, and a tombstone is not encrypted', async () => {
      await using nodes = new Nodes(backend);
      const store = await open(nodes, ONE);
      const nonces = new Set<string>();
      for (const size of [0, 1, 16, 65_536, 1_048_576]) {
        const body = Buffer.alloc(size, everyByte);
        const completion: Completion = { kind: 'response', response: { status: 200, headers: [], body } };
        const owner = await complete(store, completion);
        const read = (await store.get(owner.scope))?.completion as Completion & { kind: 'response' };
        expect(read.response.headers).toEqual([]);
        expect(read.response.body.equals(body)).toBe(true);
        const { bytes } = await reseal(nodes.place, owner.scope, (sealed) => ({ ...sealed, status: 201 }));
        nonces.add(bytes.toString('hex', 0, 12));
      }
      expect(nonces.size).toBe(5);
      const tombstone = await complete(store, { kind: 'tombstone', status: 201 });
      expect(await store.get(tombstone.scope)).not.toHaveProperty('encryptionKeyId');
      await expectReplay(await open(nodes), tombstone, { kind: 'tombstone', status: 201 });
    });

    it('is read by every gateway during a rotation, whatever key each encrypts with', async () => {
      await using nodes = new Nodes(backend);
      const stores = [
        await open(nodes, { keys: [one, two] }),
        await open(nodes, { keys: [one, two], current: 'two' }),
        await open(nodes, { keys: [two, one], current: 'none' }),
      ];
      const ids = ['one', 'two', undefined];
      for (const [i, writer] of stores.entries()) {
        const owner = await complete(writer);
        expect((await writer.get(owner.scope))?.encryptionKeyId).toBe(ids[i]);
        for (const reader of stores) await expectReplay(reader, owner);
      }
    });

    it('is written and read beside records that were written before encryption was on', async () => {
      await using nodes = new Nodes(backend);
      const clear = await complete(await open(nodes));
      const encrypting = await open(nodes, ONE);
      await expectReplay(encrypting, clear);
      const sealed = await complete(encrypting);
      await expectReplay(await open(nodes, { ...ONE, current: 'none' }), sealed);
      await expectReplay(encrypting, clear);
    });

    it('under an unknown key is never treated as absent, is listed, and is read again with its key', async () => {
      await using nodes = new Nodes(backend, { alone: true });
      const owner = await complete(await open(nodes, ONE));
      const why = 'it is encrypted with the key "one", which store.encryption.keys does not have';
      for (const ring of [undefined, { keys: [two] }]) {
        const store = await open(nodes, ring);
        await expectUnreadable(store, owner, why);
        expect((await all(store, { inDoubt: false })).records).toMatchObject([
          { scope: owner.scope, unreadable: why },
        ]);
        // Its owner repeats writes whose answers were lost.
        expect(await store.complete(owner, secret(200))).toBe('ok');
        expect(await store.release(owner)).toBe('stale');
        expect(await store.markInDoubt(owner)).toBe('stale');
      }
      await expectReplay(await open(nodes, ONE), owner);
    });

    it('under an unknown key expires as any other', async () => {
      await using nodes = new Nodes(backend);
      const owner = await complete(await open(nodes, ONE, { retentionMs: 400, inDoubtRetentionMs: 3000 }));
      const store = await open(nodes, { keys: [two] });
      await until(async () => {
        try {
          return (await store.get(owner.scope)) === undefined;
        } catch {
          return false;
        }
      });
      expect(await store.start(duplicateOf(owner))).toEqual({ kind: 'started' });
    });

    it('is not read with another secret under the same id', async () => {
      await using nodes = new Nodes(backend);
      const owner = await complete(await open(nodes, ONE));
      const store = await open(nodes, { keys: [{ ...two, id: 'one' }] });
      await expectUnreadable(store, owner, 'the key "one" is another one here, or the record was changed');
    });

    it.each<[string, (sealed: SealedResponse, other: SealedResponse) => SealedResponse]>([
      ['that of another record of the same merchant', (_, other) => other],
      ['one with another status', (sealed) => ({ ...sealed, status: 200 })],
      ['one with the id of another known key', (sealed) => ({ ...sealed, keyId: 'two' })],
      ['one with another nonce', (sealed) => withByte(sealed, 0)],
      ['one with another tag', (sealed) => withByte(sealed, 12)],
      ['one with a changed byte', (sealed) => withByte(sealed, 40)],
      ['one with its last byte cut off', (sealed) => ({ ...sealed, bytes: sealed.bytes.subarray(0, -1) })],
      [
        'one with an appended byte',
        (sealed) => ({ ...sealed, bytes: Buffer.concat([sealed.bytes, noByte]) }),
      ],
      ['one shorter than a tag', (sealed) => ({ ...sealed, bytes: sealed.bytes.subarray(0, 20) })],
    ])('that was replaced by %s is not read', async (_, change) => {
      await using nodes = new Nodes(backend);
      const store = await open(nodes, { keys: [one, two] });
      const [owner, other] = [await complete(store), await complete(store, secret(201))];
      let otherSealed: SealedResponse | undefined;
      await reseal(nodes.place, other.scope, (sealed) => {
        otherSealed = sealed;
        return { ...sealed, status: 202 };
      });
      await reseal(nodes.place, owner.scope, (sealed) => change(sealed, otherSealed as SealedResponse));
      await expectUnreadable(store, owner, /cannot be decrypted|too short/);
    });
  });
}

const noByte = Buffer.alloc(1);

function withByte(sealed: SealedResponse, at: number): SealedResponse {
  const bytes = Buffer.from(sealed.bytes);
  bytes[at] = (bytes[at] as number) ^ 1;
  return { ...sealed, bytes };
}
