import { createHash, randomBytes, randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { scopeOf } from '../../../src/idempotency/fingerprint.ts';
import { withdraw } from '../../support/client.ts';
import { expectProblem } from '../../support/problem.ts';
import { startRecordingBackend } from '../../support/recording-backend.ts';
import type { Stack } from '../../support/stack.ts';
import { openStackOn, storeKinds } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { beginToRead } from './reading.ts';

const LIMIT = 65_536;
/** More than the sockets between the backend and a merchant who does not read can hold. */
const ENDLESS = 40_000_000;
const tombstone = { status: 409, code: 'response_not_stored' } as const;

describe.each(storeKinds)('on %s, a response larger than maxStoredBytes', (kind) => {
  let stack: Stack;
  beforeAll(async () => {
    stack = await openStackOn(kind, { idempotency: { maxStoredBytes: LIMIT } });
  });
  afterAll(() => stack?.close());

  it('is streamed whole, and a retry is answered response_not_stored', async () => {
    const key = randomUUID();
    const first = await withdraw(stack.url, { key, fault: 'huge=3000000' });
    expect([first.status, first.body.length]).toEqual([201, 3_000_000]);
    expect(first.headers['content-length']).toBe('3000000');
    const { data, padding } = first.json<{ data: { transaction_id: string }; padding: string }>();
    expect(padding).toMatch(/^x+$/);
    expect(stack.sandbox.ledger.transactions({ key }).map(({ id }) => id)).toEqual([data.transaction_id]);

    for (const _ of ['second', 'third']) expectProblem(await withdraw(stack.url, { key }), tombstone);
    const other = await withdraw(stack.url, { key, amount: 11 });
    expectProblem(other, { status: 422, code: 'idempotency_key_reused' });
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it.each([
    { bytes: LIMIT, status: 201 },
    { bytes: LIMIT + 1, status: 409 },
  ])('is a response above the limit: $bytes bytes, retry $status', async ({ bytes, status }) => {
    const key = randomUUID();
    const first = await withdraw(stack.url, { key, fault: `huge=${bytes}` });
    expect([first.status, first.body.length]).toEqual([201, bytes]);
    const retry = await withdraw(stack.url, { key });
    expect(retry.status).toBe(status);
    if (status === 201) expect(retry.body).toEqual(first.body);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('is completed as soon as it passes the limit: a duplicate is answered while the first one still reads', async () => {
    const key = randomUUID();
    const reading = await beginToRead(stack.url, { key, fault: `huge=${ENDLESS}` });
    expectProblem(await withdraw(stack.url, { key }), tombstone);
    let bytes = 0;
    for await (const chunk of reading) bytes += (chunk as Buffer).length;
    expect(bytes).toBe(ENDLESS);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('whose merchant disconnects is still completed, and leaves nothing open', async () => {
    const key = randomUUID();
    const reading = await beginToRead(stack.url, { key, fault: `huge=${ENDLESS}` });
    reading.destroy();
    const scope = scopeOf('M-ALPHA', key).slice(0, 16);
    const line = await until(() => stack.log.find((one) => one.msg === 'request' && one.scope === scope));
    expect(line).toMatchObject({ outcome: 'executed', status: 201, merchantGone: true });
    expectProblem(await withdraw(stack.url, { key }), tombstone);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('that is truncated beyond the limit is truncated for the merchant too, and is completed', async () => {
    const key = randomUUID();
    const cut = withdraw(stack.url, { key, fault: `huge=${LIMIT * 4},truncate` });
    await expect(cut).rejects.toThrow(/aborted|hang up|reset/i);
    expectProblem(await withdraw(stack.url, { key }), tombstone);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('with a status of the release list is forwarded whole, and the key is free', async () => {
    const key = randomUUID();
    const refused = await withdraw(stack.url, { key, fault: 'status=429,huge=200000' });
    expect([refused.status, refused.body.length]).toEqual([429, 200_000]);
    expect((await withdraw(stack.url, { key })).status).toBe(201);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('keeps every byte if it has no Content-Length', async () => {
    const body = randomBytes(1_000_000);
    const head = 'HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nConnection: close\r\n\r\n';
    await using backend = await startRecordingBackend(Buffer.concat([Buffer.from(head), body]));
    const { url } = backend;
    const streaming = await openStackOn(kind, {
      upstream: { url },
      idempotency: { maxStoredBytes: LIMIT },
    });
    try {
      const key = randomUUID();
      const first = await withdraw(streaming.url, { key });
      const digest = createHash('sha256').update(first.body).digest('hex');
      expect(digest).toBe(createHash('sha256').update(body).digest('hex'));
      expectProblem(await withdraw(streaming.url, { key }), tombstone);
      expect(backend.received).toHaveLength(1);
    } finally {
      await streaming.close();
    }
  });
});
