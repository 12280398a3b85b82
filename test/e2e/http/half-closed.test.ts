import type { ServerResponse } from 'node:http';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
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

const payout = JSON.stringify(payoutBody(1));
const pay = (key: string, ...more: string[]) =>
  request('POST /v1/index.php', [ALPHA, `x-service-idempotency: ${key}`, ...more], payout);

/** Sends the bytes and then FIN. */
async function halfClosed(bytes: string | Buffer, port = stack.port): Promise<Wire> {
  const wire = await Wire.open(port);
  wire.write(bytes).socket.end();
  return wire;
}

/** The next final answer, and the number of `100 Continue` before it. */
async function finalAnswer(wire: Wire) {
  for (let continues = 0; ; continues++) {
    const answer = await wire.answer();
    if (answer.status !== 100) return { answer, continues };
  }
}

describe('a client that sends FIN after its request', () => {
  test.each([
    ['an execution', () => pay('half-1'), 201],
    ['its replay', () => pay('half-1'), 201],
    ['a request without a key', () => head('GET /v2/get_balance', ALPHA), 200],
    ['what is passed through', () => request('POST /v3/echo', [ALPHA], 'hello'), 200],
    ['a refusal', () => head('GET /v3/echo'), 401],
    ['HTTP/1.0', () => head('GET /v3/echo', ALPHA).replace('HTTP/1.1', 'HTTP/1.0'), 200],
  ])('gets its answer and then FIN: %s', async (_name, bytes, status) => {
    const wire = await halfClosed(bytes());
    const { answer } = await finalAnswer(wire);
    expect(answer.status).toBe(status);
    expect(await wire.ended).toBe('end');
    expect(wire.rest).toBe('');
  });

  test('gets the answers to all pipelined requests', async () => {
    const slow = head('GET /v3/echo?first', ALPHA, 'X-Sandbox-Fault: delay=50');
    const wire = await halfClosed(slow + head('GET /v3/echo?second', ALPHA));
    expect((await finalAnswer(wire)).answer.json().url).toBe('/v3/echo?first');
    expect((await finalAnswer(wire)).answer.json().url).toBe('/v3/echo?second');
    expect(await wire.ended).toBe('end');
  });

  const SLOW = 'X-Sandbox-Fault: delay=1600';

  test.each([
    ['a payout', () => pay('half-2', SLOW), 201],
    ['what is passed through', () => head('GET /v3/echo', ALPHA, SLOW), 200],
  ])('gets a late answer, after a few 100 Continue: %s', async (_name, bytes, status) => {
    const { answer, continues } = await finalAnswer(await halfClosed(bytes()));
    expect(answer.status).toBe(status);
    // Go's HTTP client gives up at the sixth.
    expect([1, 2, 3]).toContain(continues);
  });

  test('gets a whole stream', async () => {
    const wire = await halfClosed(head('GET /v3/stream?chunks=30&intervalMs=100', ALPHA));
    const { answer } = await finalAnswer(wire);
    expect(answer.body.toString().match(/data: chunk/g)).toHaveLength(30);
  });
});

describe('a client that has disconnected', () => {
  /** The request at the backend of a client that disconnects once `answer` has begun the answer. */
  const leaving = async (answer: (res: ServerResponse) => void): Promise<ServerResponse> => {
    const { promise: arrived, resolve: arrive } = Promise.withResolvers<ServerResponse>();
    const url = await httpBackend((_req, res) => arrive(res));
    const work = async (behind: Stack) => {
      const wire = await Wire.open(behind.port);
      wire.write(head('GET /v3/slow', ALPHA));
      const res = await arrived;
      const closed = new Promise((resolve) => res.once('close', resolve));
      answer(res);
      if (res.headersSent) await wire.hears(chunk('half'));
      wire.socket.destroy();
      await closed;
      await until(async () => (await behind.gateway.metrics.text()).includes('oncegate_in_flight 0'));
      return res;
    };
    // Longer than the test may take: the gateway must not end the request for another reason.
    return await inFrontOf(url, work, { responseTimeoutMs: 60_000 });
  };

  test('before its answer begins is noticed', async () => {
    expect((await leaving(() => {})).writableFinished).toBe(false);
  });

  test('within an answer that pauses is noticed', async () => {
    expect((await leaving((res) => void res.write('half'))).writableFinished).toBe(false);
  });

  test('within a request is noticed at once, and nothing is executed', async () => {
    const wire = await halfClosed(pay('half-3').subarray(0, -1));
    await wire.ended;
    expect(wire.rest).toBe('');
    await until(async () => (await stack.gateway.metrics.text()).includes('oncegate_in_flight 0'));
    expect(stack.sandbox.requests.ofKey('half-3')).toBe(0);
  });
});
