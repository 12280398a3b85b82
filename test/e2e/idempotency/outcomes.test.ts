/** What becomes of a key, by how the exchange with the backend ends, and what its merchant gets. */
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import http, { type IncomingMessage } from 'node:http';
import { describe, expect, it } from 'vitest';
import { recordIdOf } from '../../../src/ledger/record-id.ts';
import { EVENTS } from '../../../src/telemetry/events.ts';
import { BEARER, isReplay, send, type TestAnswer, withdraw } from '../../support/client.ts';
import { eachRowInTurn } from '../../support/each-row.ts';
import { payoutBody } from '../../support/payout.ts';
import { expectProblem } from '../../support/problem.ts';
import { read } from '../../support/repository.ts';
import { stackForFile } from '../../support/stack.ts';
import { until } from '../../support/until.ts';

const LIMIT = 65_536;
/** More than the sockets between the backend and a merchant who does not read can hold. */
const ENDLESS = 40_000_000;
const tombstone = { status: 409, code: 'response_not_stored' } as const;
const inDoubt = { status: 409, code: 'outcome_unknown' } as const;

const stack = await stackForFile({
  upstream: { responseTimeoutMs: 1500 },
  idempotency: { maxStoredBytes: LIMIT },
});

/** Fields of the connection between the merchant and the gateway, and fields that name requests. */
const NOT_OF_THE_RESPONSE = new Set([
  ...['connection', 'keep-alive', 'transfer-encoding'],
  ...['x-request-id', 'idempotent-original-request-id'],
]);

/** An answer's header lines in their order and case, without those that differ between answers. */
const endToEndLines = ({ rawHeaders }: TestAnswer): (string | undefined)[][] =>
  rawHeaders.flatMap((name, at) =>
    at % 2 === 1 || NOT_OF_THE_RESPONSE.has(name.toLowerCase()) ? [] : [[name, rawHeaders[at + 1]]],
  );

const payouts = (key: string) => stack.sandbox.ledger.payouts({ key });

it('every complete response is completed, and replayed byte for byte', async () => {
  const completed: [
    what: string,
    payout: { fault?: string; amount?: number },
    status: number,
    paid: number,
  ][] = [
    ['a success', {}, 201, 1],
    ['a success after early hints', { fault: 'early-hints' }, 201, 1],
    ['a success in many small pieces', { fault: 'drip=1' }, 201, 1],
    ['500 behind an execution', { fault: '500-after' }, 500, 1],
    ['403, which a firewall may answer behind an execution', { fault: 'status=403' }, 403, 0],
    ['500 without one', { fault: '500-before' }, 500, 0],
    ['too little money', { amount: 2_000_000 }, 402, 0],
    ['no content', { fault: 'status=204' }, 204, 0],
    ['not modified', { fault: 'status=304' }, 304, 0],
    ['404', { fault: 'status=404' }, 404, 0],
    ['409 of the backend', { fault: 'status=409' }, 409, 0],
  ];
  await eachRowInTurn(completed, async ([, { fault, ...payout }, status, paid]) => {
    const key = randomUUID();
    const first = await withdraw(stack.url, { key, ...payout, ...(fault && { fault }) });
    expect([first.status, isReplay(first)]).toEqual([status, false]);
    const again = await withdraw(stack.url, { key, ...payout });
    expect([again.status, again.body]).toEqual([status, first.body]);
    expect(endToEndLines(again)).toEqual([...endToEndLines(first), ['Idempotent-Replayed', 'true']]);
    expect([payouts(key), stack.sandbox.requests.ofKey(key)]).toEqual([paid, 1]);
  });
});

it.each([401, 429])('%i is passed on unchanged, and the key is free for a retry', async (status) => {
  const key = randomUUID();
  // The backend's answer without the gateway.
  const fault = `status=${status}`;
  const headers = { 'X-Sandbox-Fault': fault, 'Content-Type': 'application/json' };
  const direct = await send(stack.sandbox.url, {
    ...{ method: 'POST', path: '/v1/index.php', headers, body: '{}' },
  });
  const undated = (answer: TestAnswer) => endToEndLines(answer).filter(([name]) => name !== 'Date');
  const refused = await withdraw(stack.url, { key, fault });
  expect([refused.status, refused.body, undated(refused)]).toEqual([status, direct.body, undated(direct)]);
  const executed = await withdraw(stack.url, { key });
  expect([executed.status, isReplay(executed)]).toEqual([201, false]);
  expect(isReplay(await withdraw(stack.url, { key }))).toBe(true);
  expect(payouts(key)).toBe(1);
});

/** The first gets `status`, every retry 409, and the backend sees one request. */
async function expectInDoubt(fault: string, status: number, paid: number): Promise<void> {
  const key = randomUUID();
  expectProblem(await withdraw(stack.url, { key, fault }), { status, code: 'outcome_unknown' });
  for (const _ of ['second', 'third']) expectProblem(await withdraw(stack.url, { key }), inDoubt);
  // Another request under this key still gets its own answer. Another key, and another merchant's, is not in doubt.
  const reused = await withdraw(stack.url, { key, amount: 11 });
  expectProblem(reused, { status: 422, code: 'idempotency_key_reused' });
  expect((await withdraw(stack.url, { key, secret: 'sk_sandbox_bravo' })).status).toBe(201);
  expect(stack.sandbox.ledger.payouts({ key, merchant: 'M-ALPHA' })).toBe(paid);
  expect(stack.sandbox.requests.ofKey(key)).toBe(2);
}

describe('an answer leaves the key in doubt if', () => {
  it.each([
    ['refuse', 0],
    ['reset-before-execute', 0],
    ['execute-then-reset', 1],
    ['garbage', 1],
    ['truncate', 1],
    ['truncate-chunked', 1],
    ['truncate-unframed', 1],
    ['huge=30000,truncate', 1],
  ])('it is cut off: %s', async (fault, paid) => {
    await expectInDoubt(fault, 502, paid);
  });

  it('it is late, for which the log and the runbook have the cause DeadlinePassed', async () => {
    const late = { hang: 0, 'execute-then-hang': 1, 'drip=300': 1 };
    await Promise.all(Object.entries(late).map(([fault, paid]) => expectInDoubt(fault, 504, paid)));
    const lines = stack.log.filter(({ reason }) => reason === 'DeadlinePassed');
    expect(lines.map(({ msg }) => msg)).toEqual(Object.keys(late).map(() => EVENTS.in_doubt.message));
    expect(read('docs/runbook/resolve-a-key-in-doubt.md')).toContain(
      '`DeadlinePassed` (no complete response',
    );
  });

  it('it is that of a proxy which gave up, which is passed on unchanged', async () => {
    for (const status of [408, 502, 503, 504, 520, 522, 524]) {
      const key = randomUUID();
      const first = await withdraw(stack.url, { key, fault: `status=${status}` });
      expect([first.status, first.headers['content-type']]).toEqual([
        status,
        'application/json; charset=utf-8',
      ]);
      expectProblem(await withdraw(stack.url, { key }), inDoubt);
      expect(stack.sandbox.requests.ofKey(key)).toBe(1);
      const withoutKey = await withdraw(stack.url, { fault: `status=${status}` });
      expect([withoutKey.status, withoutKey.body]).toEqual([status, first.body]);
    }
  });
});

describe('a response larger than maxStoredBytes', () => {
  it('is one byte larger than one that is stored', async () => {
    for (const [bytes, status] of [
      [LIMIT, 201],
      [LIMIT + 1, 409],
    ]) {
      const key = randomUUID();
      const first = await withdraw(stack.url, { key, fault: `huge=${bytes}` });
      expect([first.status, first.body.length]).toEqual([201, bytes]);
      const retry = await withdraw(stack.url, { key });
      expect(retry.status).toBe(status);
      if (status === 201) expect(retry.body).toEqual(first.body);
      expect(payouts(key)).toBe(1);
    }
  });

  /** A payout whose answer's head has arrived, and whose body is not read. */
  async function beginToRead(key: string): Promise<IncomingMessage> {
    const headers = { ...BEARER, 'x-service-idempotency': key, 'X-Sandbox-Fault': `huge=${ENDLESS}` };
    const options = { method: 'POST', path: '/v1/index.php', agent: false, headers };
    const request = http.request(stack.url, options).end(JSON.stringify(payoutBody()));
    const [response] = (await once(request, 'response')) as [IncomingMessage];
    return response.on('error', () => {});
  }

  it('is completed as soon as it passes the limit: a duplicate is answered while the first one still reads', async () => {
    const key = randomUUID();
    const reading = await beginToRead(key);
    expectProblem(await withdraw(stack.url, { key }), tombstone);
    let bytes = 0;
    for await (const chunk of reading) bytes += (chunk as Buffer).length;
    expect(bytes).toBe(ENDLESS);
    expect(payouts(key)).toBe(1);
  });

  it('whose merchant disconnects is still completed, and leaves nothing open', async () => {
    const key = randomUUID();
    (await beginToRead(key)).destroy();
    const recordId = recordIdOf('gateway', 'M-ALPHA', key).slice(0, 16);
    const line = await until(() =>
      stack.log.find((one) => one.msg === 'request' && one.recordId === recordId),
    );
    expect(line).toMatchObject({ outcome: 'executed', status: 201, merchantGone: true });
    expectProblem(await withdraw(stack.url, { key }), tombstone);
    expect(payouts(key)).toBe(1);
  });

  it('that is truncated beyond the limit is truncated for the merchant too, and is completed', async () => {
    const key = randomUUID();
    const cut = withdraw(stack.url, { key, fault: `huge=${LIMIT * 4},truncate` });
    await expect(cut).rejects.toThrow(/aborted|hang up|reset/i);
    expectProblem(await withdraw(stack.url, { key }), tombstone);
    expect(payouts(key)).toBe(1);
  });
});
