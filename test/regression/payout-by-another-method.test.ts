/** A payout by PUT or GET, or in the body of a WebSocket handshake, passed the engine by, and was executed again by its retry. */
import { expect, it } from 'vitest';
import { eachRowInTurn } from '../support/each-row.ts';
import { payoutBody } from '../support/payout.ts';
import { stackForTest } from '../support/stack.ts';
import { ALPHA, chunk, codeOf, HANDSHAKE, head, LAST_CHUNK, request, Wire } from '../support/wire.ts';

const PAYOUT = JSON.stringify(payoutBody(5));
const rows = [
  ...['PUT', 'PATCH', 'DELETE', 'GET', 'OPTIONS'].map((method) => ({ method, handshake: [] })),
  ...['GET', 'POST'].map((method) => ({ method, handshake: HANDSHAKE })),
].flatMap((row) => [true, false].map((chunked) => ({ ...row, chunked })));

it('a payout by any method, and in the body of a handshake, is sent once for its key', async () => {
  const { port, sandbox } = await stackForTest();
  await eachRowInTurn(rows, async ({ method, handshake, chunked }) => {
    const key = `${method}-${handshake.length}-${chunked}`;
    const pay = async (...more: string[]) => {
      const fields = [ALPHA, 'Content-Type: application/json', `x-service-idempotency: ${key}`, ...handshake];
      const line = `${method} /v1/index.php`;
      const inChunks =
        head(line, ...fields, ...more, 'Transfer-Encoding: chunked') + chunk(PAYOUT) + LAST_CHUNK;
      const wire = await Wire.open(port);
      const answer = await wire
        .write(chunked ? inChunks : request(line, [...fields, ...more], PAYOUT))
        .answer();
      return `${answer.status} ${codeOf(answer)}`;
    };
    expect([await pay('X-Sandbox-Fault: execute-then-reset'), await pay()]).toEqual([
      '502 outcome_unknown',
      '409 outcome_unknown',
    ]);
    expect(sandbox.requests.ofKey(key)).toBe(1);
  });
  for (const { method } of rows) {
    const times = rows.filter((row) => row.method === method).length;
    expect(sandbox.requests.ofPath(`${method} /v1/index.php`)).toBe(times);
  }
  // Those with POST arrived whole.
  expect(sandbox.ledger.payouts()).toBe(2);
});

it('another method without a body or a key is passed on', async () => {
  const { port, sandbox } = await stackForTest();
  const wire = (await Wire.open(port)).write(head('GET /v1/index.php', ALPHA));
  expect((await wire.answer()).status).toBe(404);
  expect(sandbox.requests.total()).toBe(1);
});
