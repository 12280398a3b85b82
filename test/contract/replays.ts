import { describe, expect, it } from 'vitest';
import type { Completion } from '../../src/lib/exchange.ts';
import type { Execution, StartAnswer } from '../../src/store/contract.ts';
import { duplicateOf } from '../support/requests.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring, replayOf } from './states.ts';

const everyByte = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));
const everyLatin1 = everyByte.toString('latin1');

const response = (body: Buffer | string, headers: string[] = [], status = 200): Completion => ({
  kind: 'response',
  response: { status, headers, body: Buffer.from(body) },
});

const completions: [what: string, completion: Completion][] = [
  ['every byte', response(everyByte)],
  ['an empty body', response('')],
  ['no headers, status 204', response('', [], 204)],
  ['a body that is not UTF-8', response(Buffer.from([0xff, 0xfe, 0xc3, 0x28, 0x00]))],
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
  ['a tombstone without a status', { kind: 'tombstone', status: 0 }],
];

export function replays(backend: Backend): void {
  describe('a completed scope', () => {
    it.each(completions)('replays %s', async (_, completion) => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const owner = await bring(store, 'executing');
      expect(await store.complete(owner, completion)).toBe('ok');
      expectSame(await store.start(duplicateOf(owner)), completion, owner);
      expectSame(await other.start(duplicateOf(owner)), completion, owner);
      expectSame(await other.peek(duplicateOf(owner)), completion, owner);
      const record = await other.get(owner.scope);
      expect(record).toMatchObject({ state: 'completed', key: owner.key, merchant: owner.merchant });
      expect(record?.fingerprint).toEqual(owner.fingerprint);
      expect(record?.completion?.kind).toBe(completion.kind);
      if (completion.kind === 'tombstone') expect(record?.completion).toEqual(completion);
    });

    it('replays the same response to many requests at once', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const owner = await bring(store, 'executing');
      const completion = response(everyByte, ['X-A', everyLatin1]);
      await store.complete(owner, completion);
      const answers = await Promise.all(Array.from({ length: 64 }, () => store.start(duplicateOf(owner))));
      for (const answer of answers) expectSame(answer, completion, owner);
    });

    it('is kept for a store that opens later', async () => {
      await using nodes = new Nodes(backend, { alone: true });
      const store = await nodes.open();
      const owner = await bring(store, 'completed');
      const before = await store.get(owner.scope);
      await store.close();
      expect(await (await nodes.open()).get(owner.scope)).toEqual(before);
    });

    it('does not count as having been in doubt if its owner completed in time', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const owner = await bring(store, 'completed');
      expect(await store.get(owner.scope)).toMatchObject({ wasInDoubt: false });
    });
  });
}

/** Compares bodies with `equals`, because the diff of a megabyte would be unreadable. */
function expectSame(
  answer: StartAnswer | { kind: 'absent' },
  completion: Completion,
  { requestId }: Execution,
): void {
  if (answer.kind !== 'completed' || completion.kind !== 'response') {
    expect(answer).toEqual(replayOf(completion, { requestId }));
    return;
  }
  expect(answer.requestId).toBe(requestId);
  const { body, ...head } = answer.response;
  const { body: expectedBody, ...expectedHead } = completion.response;
  expect(head).toEqual(expectedHead);
  expect(body.equals(expectedBody)).toBe(true);
}
