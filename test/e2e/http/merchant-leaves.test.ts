import { once } from 'node:events';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { httpBackend } from '../../support/backend.ts';
import { payoutBody } from '../../support/payout.ts';
import { inFrontOf, openStack, type Stack } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, chunk, head, request, Wire } from '../../support/wire.ts';

let stack: Stack;
beforeAll(async () => {
  stack = await openStack();
});
afterAll(() => stack.close());

type Seen = { req: IncomingMessage; res: ServerResponse };

/** The request at the backend after its merchant has disconnected. */
async function leaving(
  bytes: string | Buffer,
  answer: (seen: Seen, wire: Wire) => Promise<void>,
): Promise<Seen> {
  const { promise: arrived, resolve: arrive } = Promise.withResolvers<Seen>();
  const url = await httpBackend((req, res) => arrive({ req: req.on('error', () => {}), res }));
  return await inFrontOf(url, async (behind) => {
    const wire = await Wire.open(behind.port);
    wire.write(bytes);
    const seen = await arrived;
    const closed = once(seen.res, 'close');
    await answer(seen, wire);
    wire.socket.destroy();
    await closed;
    await until(async () => (await behind.gateway.metrics.text()).includes('oncegate_in_flight 0'));
    return seen;
  });
}

test('before the answer: the request to the backend is aborted', async () => {
  const { res } = await leaving(head('GET /v3/slow', ALPHA), async () => {});
  expect(res.writableFinished).toBe(false);
});

test('within the answer: it is aborted too', async () => {
  const { res } = await leaving(head('GET /v3/slow', ALPHA), async (seen, wire) => {
    seen.res.write('half');
    await wire.hears(chunk('half'));
  });
  expect(res.writableFinished).toBe(false);
});

test('within an upload: the backend does not accept the part as a whole body', async () => {
  const { req } = await leaving(
    `${head('POST /v3/upload', ALPHA, 'Content-Length: 100')}half`,
    async (seen) => {
      expect(String((await once(seen.req, 'data'))[0])).toBe('half');
    },
  );
  expect(req.complete).toBe(false);
});

test('within a chunked upload: the same', async () => {
  const framing = 'Transfer-Encoding: chunked';
  const { req } = await leaving(head('POST /v3/upload', ALPHA, framing) + chunk('half'), async (seen) => {
    expect(String((await once(seen.req, 'data'))[0])).toBe('half');
  });
  expect(req.complete).toBe(false);
});

test('a payout is still executed, and its result is stored', async () => {
  const body = JSON.stringify(payoutBody(1));
  const fields = [ALPHA, 'x-service-idempotency: leaves-1'];
  const wire = await Wire.open(stack.port);
  wire.write(request('POST /v1/index.php', [...fields, 'X-Sandbox-Fault: delay=200'], body));
  await until(() => stack.sandbox.requests.ofKey('leaves-1') === 1);
  wire.socket.destroy();
  const again = await Wire.open(stack.port);
  const answer = await again.write(request('POST /v1/index.php', fields, body)).answer();
  expect([answer.status, answer.headers['idempotent-replayed']]).toEqual([201, ['true']]);
  expect(stack.sandbox.ledger.payouts({ key: 'leaves-1' })).toBe(1);
});
