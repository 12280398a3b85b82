import { createServer, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { NOT_LISTENING, openBlackHole, rawBackend } from '../../support/backend.ts';
import { payoutBody } from '../../support/payout.ts';
import { inFrontOf, openStack, type Stack } from '../../support/stack.ts';
import { ALPHA, codeOf, head, request, Wire, type WireAnswer } from '../../support/wire.ts';

const payout = JSON.stringify(payoutBody(1));

/** The ways in which a request reaches the backend. */
const ways: [string, (more: string[]) => string | Buffer][] = [
  ['passed through', (more) => head('GET /v3/echo', ALPHA, ...more)],
  ['passed through with a body', (more) => request('POST /v3/echo', [ALPHA, ...more], 'hello')],
  ['executed', (more) => head('GET /v2/get_balance', ALPHA, ...more)],
  [
    'executed under a key',
    (more) => request('POST /v1/index.php', [ALPHA, `x-service-idempotency: f-${key++}`, ...more], payout),
  ],
];
let key = 0;

async function ask({ port }: Pick<Stack, 'port'>, bytes: string | Buffer): Promise<WireAnswer> {
  const wire = await Wire.open(port);
  return await wire.write(bytes).answer();
}

let stack: Stack;
let hasty: Stack;
let hole: Awaited<ReturnType<typeof openBlackHole>>;
beforeAll(async () => {
  [stack, hasty, hole] = await Promise.all([
    openStack(),
    openStack({ upstream: { responseTimeoutMs: 1500 } }),
    openBlackHole(),
  ]);
});
afterAll(() => Promise.all([stack, hasty, hole].map((open) => open?.close())));

describe.each(ways)('%s', (_way, bytes) => {
  test('a refused connection: 502 upstream_unreachable', async () => {
    const answer = await inFrontOf(NOT_LISTENING, (behind) => ask(behind, bytes([])));
    expect([answer.status, codeOf(answer)]).toEqual([502, 'upstream_unreachable']);
  });

  test('a connection that is never established: 502 upstream_unreachable, after the connect timeout', async () => {
    const answer = await inFrontOf(hole.url, (behind) => ask(behind, bytes([])), { connectTimeoutMs: 200 });
    expect([answer.status, codeOf(answer)]).toEqual([502, 'upstream_unreachable']);
  });

  test('a host that does not exist: 502 upstream_unreachable', async () => {
    const answer = await inFrontOf('http://nowhere.invalid:80', (behind) => ask(behind, bytes([])));
    expect([answer.status, codeOf(answer)]).toEqual([502, 'upstream_unreachable']);
  });

  test('a TLS handshake without an answer: 502 upstream_unreachable, after the connect timeout', async () => {
    const url = (await rawBackend(() => {})).replace('http:', 'https:');
    const answer = await inFrontOf(url, (behind) => ask(behind, bytes([])), { connectTimeoutMs: 200 });
    expect([answer.status, codeOf(answer)]).toEqual([502, 'upstream_unreachable']);
  }, 8000);

  test('a TLS handshake that fails: 502 upstream_unreachable', async () => {
    const url = await rawBackend((socket) => socket.end('HTTP/1.1 400 Bad Request\r\n\r\n'));
    const answer = await inFrontOf(url.replace('http:', 'https:'), (behind) => ask(behind, bytes([])));
    expect([answer.status, codeOf(answer)]).toEqual([502, 'upstream_unreachable']);
  });

  test.each(['refuse', 'reset-before-execute', 'execute-then-reset', 'garbage'])(
    'sent, then %s: 502 outcome_unknown',
    async (fault) => {
      const answer = await ask(stack, bytes([`X-Sandbox-Fault: ${fault}`]));
      expect([answer.status, codeOf(answer)]).toEqual([502, 'outcome_unknown']);
    },
  );

  test.each(['hang', 'execute-then-hang'])('sent, then %s: 504 outcome_unknown', async (fault) => {
    const answer = await ask(hasty, bytes([`X-Sandbox-Fault: ${fault}`]));
    expect([answer.status, codeOf(answer)]).toEqual([504, 'outcome_unknown']);
  });

  test('a connection that the backend closes without a response: 502 outcome_unknown', async () => {
    const url = await rawBackend((socket) => socket.once('data', () => socket.end()));
    const answer = await inFrontOf(url, (behind) => ask(behind, bytes([])));
    expect([answer.status, codeOf(answer)]).toEqual([502, 'outcome_unknown']);
  });

  test('sent on a connection that the backend resets at this moment: not sent again, and 502 outcome_unknown', async () => {
    let requests = 0;
    const url = await rawBackend((socket) => {
      socket.on('data', (bytes) => {
        if (!bytes.includes(' HTTP/1.1\r\n')) return;
        requests++;
        if (requests === 1) socket.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}');
        else socket.resetAndDestroy();
      });
    });
    const answer = await inFrontOf(url, async (behind) => {
      expect((await ask(behind, bytes([]))).status).toBe(200);
      return await ask(behind, bytes([]));
    });
    expect([answer.status, codeOf(answer), requests]).toEqual([502, 'outcome_unknown', 2]);
  });
});

describe('a truncated response', () => {
  const half = (socket: Socket, framing: string) =>
    socket.once('data', () => {
      socket.write(`HTTP/1.1 200 OK\r\n${framing}`, () => socket.destroy());
    });

  test.each([
    ['with Content-Length', 'Content-Length: 10\r\n\r\n12345'],
    ['in chunks', 'Transfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n'],
    ['within a chunk', 'Transfer-Encoding: chunked\r\n\r\na\r\n12345'],
  ])('%s closes the merchant’s connection if it is passed through', async (_how, framing) => {
    const url = await rawBackend((socket) => void half(socket, framing));
    await inFrontOf(url, async ({ port }) => {
      const wire = await Wire.open(port);
      wire.write(head('GET /v3/download', ALPHA));
      await wire.hears('12345');
      await expect(wire.answer()).rejects.toThrow('the connection ended');
      expect(wire.rest).not.toContain('\r\n0\r\n');
    });
  });

  test.each([
    ['with Content-Length', 'Content-Length: 10\r\n\r\n12345'],
    ['in chunks', 'Transfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n'],
  ])('%s is answered with 502 outcome_unknown by the executor', async (_how, framing) => {
    const url = await rawBackend((socket) => void half(socket, framing));
    await inFrontOf(url, async (behind) => {
      const answer = await ask(behind, head('GET /v2/get_balance', ALPHA));
      expect([answer.status, codeOf(answer)]).toEqual([502, 'outcome_unknown']);
    });
  });

  test.each(['truncate', 'truncate-chunked'])(
    'by the sandbox’s fault %s does not look complete',
    async (fault) => {
      const wire = await Wire.open(stack.port);
      wire.write(head('GET /v3/echo', ALPHA, `X-Sandbox-Fault: ${fault}`));
      await expect(wire.answer()).rejects.toThrow('the connection ended');
    },
  );
});

test('responseTimeoutMs does not limit the body of a response that is passed through', async () => {
  const url = await rawBackend((socket) => {
    socket.once('data', async () => {
      socket.write('HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345');
      // Longer than responseTimeoutMs.
      await sleep(2500);
      socket.write('67890');
    });
  });
  const answer = await inFrontOf(url, (behind) => ask(behind, head('GET /v3/download', ALPHA)), {
    responseTimeoutMs: 2000,
  });
  expect(answer.body.toString()).toBe('1234567890');
});

test('a backend that works again is used again', async () => {
  const backend = createServer().listen(0, '127.0.0.1');
  await new Promise((resolve) => backend.once('listening', resolve));
  const { port } = backend.address() as { port: number };
  await inFrontOf(`http://127.0.0.1:${port}`, async (behind) => {
    backend.on('connection', (socket) => socket.resetAndDestroy());
    expect((await ask(behind, head('GET /v3/echo', ALPHA))).status).toBe(502);
    backend.removeAllListeners('connection');
    backend.on('connection', (socket: Socket) => {
      socket.once('data', () => socket.end('HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n'));
    });
    expect((await ask(behind, head('GET /v3/echo', ALPHA))).status).toBe(204);
    expect((await ask(behind, head('GET /v2/get_balance', ALPHA))).status).toBe(204);
  });
  await new Promise((resolve) => backend.close(resolve));
});
