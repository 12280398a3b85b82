/** Responses that the ledger stores encrypted. The stores keep the bytes as they get them. */
import { randomBytes } from 'node:crypto';
import { expect, it } from 'vitest';
import { Ledger } from '../../src/ledger/ledger.ts';
import type { Completion } from '../../src/lib/exchange.ts';
import { systemRandom } from '../../src/lib/random.ts';
import { ResponseCipher } from '../../src/store/response-cipher.ts';
import type { Encryption } from '../../src/store/store-options.ts';
import {
  type EncryptedResponse,
  type Execution,
  type KeyRecord,
  UnreadableRecord,
} from '../../src/store/types.ts';
import { eachRowInTurn } from '../support/each-row.ts';
import { MemoryRegister } from '../support/memory-register.ts';
import { duplicateOf, newRequest, otherOf } from '../support/requests.ts';

const newKey = (id: string) => ({ id, secret: randomBytes(32).toString('base64') });
const [one, two] = [newKey('one'), newKey('two')];
const lifetimes = { leaseMs: 10, retentionMs: 100, inDoubtRetentionMs: 1000 };
const everyByte = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));

const response = (body = everyByte): Completion & { kind: 'response' } => ({
  kind: 'response',
  response: { status: 201, headers: ['X-Reference', everyByte.toString('latin1')], body },
});

function store() {
  const register = new MemoryRegister(() => 0);
  const open = (ring?: Encryption) =>
    new Ledger(register, { gatewayId: 'gateway', lifetimes, cipher: new ResponseCipher(ring) });
  const stored = async ({ recordId }: Execution) => (await register.read(recordId))?.record as KeyRecord;
  const encrypted = async (owner: Execution) => (await stored(owner)).completion as EncryptedResponse;
  /** Puts another encrypted response in place of that of a record. */
  const replaceResponse = async (owner: Execution, completion: EncryptedResponse) => {
    const record = await stored(owner);
    const next = { ...record, revision: systemRandom.token(), completion };
    const { revision, operation } = record;
    const write = { kind: 'replace', revision, record: next, operation, expiresInMs: 'unchanged' } as const;
    expect(await register.replace(owner.recordId, write)).toEqual({ done: true });
  };
  return { open, encrypted, replaceResponse };
}

async function complete(ledger: Ledger, completion: Completion = response()): Promise<Execution> {
  const owner = newRequest();
  await ledger.start(owner);
  expect(await ledger.complete(owner, completion)).toBe('ok');
  return owner;
}

async function expectReplay(ledger: Ledger, owner: Execution): Promise<void> {
  const { requestId } = owner;
  const answer = { kind: 'completed', response: response().response, requestId };
  expect(await ledger.start(duplicateOf(owner))).toEqual(answer);
  expect(await ledger.peek(owner)).toEqual(answer);
  expect((await ledger.get(owner.recordId))?.completion).toEqual(response());
}

/** A record that cannot be read is never absent, and is never started again. */
async function expectUnreadable(ledger: Ledger, owner: Execution, why: RegExp | string): Promise<void> {
  const [request, other] = [duplicateOf(owner), otherOf(owner)];
  await expect(ledger.start(request)).rejects.toThrow(UnreadableRecord);
  await expect(ledger.peek(request)).rejects.toThrow(why);
  await expect(ledger.get(owner.recordId)).rejects.toThrow(why);
  // The fingerprint is not encrypted.
  expect(await ledger.start(other)).toEqual({ kind: 'mismatch' });
  for (const execution of [request, other]) expect(await ledger.restart(execution)).toBe('changed');
}

it('an encrypted response of any size is replayed byte for byte, under a nonce of its own', async () => {
  const { open, encrypted } = store();
  const ledger = open({ keys: [one] });
  const nonces = new Set<string>();
  for (const size of [0, 1, 16, 65_536, 1_048_576]) {
    const body = Buffer.alloc(size, everyByte);
    const owner = await complete(ledger, response(body));
    const read = (await ledger.get(owner.recordId))?.completion as Completion & { kind: 'response' };
    expect(read.response.body.equals(body)).toBe(true);
    const { kind, bytes } = await encrypted(owner);
    expect(kind).toBe('encrypted');
    expect(bytes.includes('X-Reference')).toBe(false);
    if (size >= 16) expect(bytes.includes(body.subarray(0, 16))).toBe(false);
    nonces.add(bytes.toString('hex', 0, 12));
  }
  expect(nonces.size).toBe(5);
  const tombstone = await complete(ledger, { kind: 'tombstone', status: 201 });
  expect(await encrypted(tombstone)).toEqual({ kind: 'tombstone', status: 201 });
});

it('the response of a resolution, by an operator or a lookup, is encrypted too', async () => {
  const { open, encrypted } = store();
  const ledger = open({ keys: [one] });
  const owner = newRequest();
  await ledger.start(owner);
  await ledger.leaveInDoubt(owner);
  const resolution = { as: 'completed', completion: response() } as const;
  const note = { by: 'ada', reason: 'the books show it' };
  expect(await ledger.resolve(owner.recordId, owner.token, resolution, note)).toBe('ok');
  expect((await encrypted(owner)).kind).toBe('encrypted');
  await expectReplay(ledger, owner);
});

it('an encrypted response is read by every gateway during a rotation, and beside others', async () => {
  const { open } = store();
  const ledgers: [ledger: Ledger, keyId: string | undefined][] = [
    [open({ keys: [one, two] }), 'one'],
    [open({ keys: [one, two], current: 'two' }), 'two'],
    [open({ keys: [two, one], current: 'none' }), undefined],
  ];
  for (const [writer, keyId] of ledgers) {
    const owner = await complete(writer);
    expect((await writer.get(owner.recordId))?.encryptionKeyId).toBe(keyId);
    for (const [reader] of ledgers) await expectReplay(reader, owner);
  }
});

it('an encrypted response under an unknown key is never treated as absent, and is listed', async () => {
  const { open } = store();
  const owner = await complete(open({ keys: [one] }));
  const why = 'it is encrypted with the key "one", which store.encryption.keys does not have';
  for (const ring of [undefined, { keys: [two] }]) {
    const ledger = open(ring);
    await expectUnreadable(ledger, owner, why);
    const { records } = await ledger.list({ inDoubt: false, limit: 10 });
    expect(records).toEqual([{ recordId: owner.recordId, unreadable: why }]);
    // Its owner repeats writes whose answers were lost.
    expect(await ledger.complete(owner, response())).toBe('ok');
    expect(await ledger.release(owner)).toBe('stale');
  }
  const other = open({ keys: [{ ...two, id: 'one' }] });
  await expectUnreadable(other, owner, 'the key "one" is another one here, or the record was changed');
  await expectReplay(open({ keys: [one] }), owner);
});

const withByte = (encrypted: EncryptedResponse, at: number): EncryptedResponse => {
  const bytes = Buffer.from(encrypted.bytes);
  bytes[at] = (bytes[at] as number) ^ 1;
  return { ...encrypted, bytes };
};

const changes: [
  what: string,
  change: (encrypted: EncryptedResponse, other: EncryptedResponse) => EncryptedResponse,
][] = [
  ['that of another record of the same merchant', (_, other) => other],
  ['one with another status', (encrypted) => ({ ...encrypted, status: 200 })],
  ['one with the id of another known key', (encrypted) => ({ ...encrypted, keyId: 'two' })],
  ['one with another nonce', (encrypted) => withByte(encrypted, 0)],
  ['one with another tag', (encrypted) => withByte(encrypted, 12)],
  ['one with a changed byte', (encrypted) => withByte(encrypted, 40)],
  [
    'one with its last byte cut off',
    (encrypted) => ({ ...encrypted, bytes: encrypted.bytes.subarray(0, -1) }),
  ],
  [
    'one with an appended byte',
    (encrypted) => ({ ...encrypted, bytes: Buffer.concat([encrypted.bytes, Buffer.alloc(1)]) }),
  ],
  ['one shorter than a tag', (encrypted) => ({ ...encrypted, bytes: encrypted.bytes.subarray(0, 20) })],
];

it('an encrypted response that was replaced by another one is not read', async () => {
  await eachRowInTurn(changes, async ([, change]) => {
    const { open, encrypted, replaceResponse } = store();
    const ledger = open({ keys: [one, two] });
    const [owner, other] = [await complete(ledger), await complete(ledger)];
    await replaceResponse(owner, change(await encrypted(owner), await encrypted(other)));
    await expectUnreadable(ledger, owner, /cannot be decrypted|too short/);
  });
});
