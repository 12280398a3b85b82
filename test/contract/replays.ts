import { describe, expect, it } from 'vitest';
import type { Settlement } from '../../src/idempotency/record.ts';
import type { Claim } from '../../src/idempotency/store.ts';
import { duplicateOf } from '../support/requests.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring } from './states.ts';

const everyByte = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));
const everyLatin1 = everyByte.toString('latin1');

const response = (body: Buffer | string, headers: string[] = [], status = 200): Settlement => ({
  kind: 'response',
  response: { status, headers, body: Buffer.from(body) },
});

const settlements: [what: string, settlement: Settlement][] = [
  ['every byte there is', response(everyByte)],
  ['an empty body', response('')],
  ['no headers, status 204', response('', [], 204)],
  ['a body that is no UTF-8', response(Buffer.from([0xff, 0xfe, 0xc3, 0x28, 0x00]))],
  ['line ends and zeros', response('\r\n\0\r\n\r\n$5\r\n')],
  ['headers in odd case', response('x', ['cOnTeNt-TyPe', 'TEXT/plain', 'ETag', '"1"'])],
  [
    'a header sent twice',
    response('x', ['Set-Cookie', 'a=1', 'X-A', '1', 'Set-Cookie', 'b=2', 'set-cookie', 'c']),
  ],
  ['header values of every byte', response('x', ['X-Odd', everyLatin1, 'X-Empty', ''])],
  ['a long header', response('x', ['X-Long', 'y'.repeat(70_000)])],
  ['an error of the backend', response('{"success":false}', ['Content-Type', 'application/json'], 500)],
  ['a body of 1 MiB', response(Buffer.alloc(1_048_576, everyByte))],
  ['a tombstone', { kind: 'tombstone', status: 201 }],
];

export function replays(backend: Backend): void {
  describe('a settled scope', () => {
    it.each(settlements)('gives back %s', async (_, settlement) => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const owner = await bring(store, 'executing');
      expect(await store.settle(owner, settlement)).toBe('ok');
      expectSame(await store.claim(duplicateOf(owner)), settlement);
      expectSame(await other.claim(duplicateOf(owner)), settlement);
      const stands = await other.get(owner.scope);
      expect(stands).toMatchObject({ state: 'settled', key: owner.key, merchant: owner.merchant });
      expect(stands?.fingerprint).toEqual(owner.fingerprint);
    });

    it('gives back the same to many at once', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const owner = await bring(store, 'executing');
      const settlement = response(everyByte, ['X-A', everyLatin1]);
      await store.settle(owner, settlement);
      const claims = await Promise.all(Array.from({ length: 64 }, () => store.claim(duplicateOf(owner))));
      for (const claim of claims) expectSame(claim, settlement);
    });

    it('is still there for a node that starts later', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const owner = await bring(store, 'settled');
      const before = await store.get(owner.scope);
      await store.close();
      expect(await (await nodes.open()).get(owner.scope)).toEqual(before);
    });
  });
}

/** Bodies are compared as bytes: a diff of a megabyte helps nobody. */
function expectSame(claim: Claim, settlement: Settlement): void {
  if (claim.kind !== 'settled' || claim.settlement.kind !== 'response' || settlement.kind !== 'response') {
    expect(claim).toEqual({ kind: 'settled', settlement });
    return;
  }
  const { body, ...head } = claim.settlement.response;
  const { body: expectedBody, ...expectedHead } = settlement.response;
  expect(head).toEqual(expectedHead);
  expect(body.equals(expectedBody)).toBe(true);
}
