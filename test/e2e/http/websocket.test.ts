import { once } from 'node:events';
import type { IncomingMessage } from 'node:http';
import type { Duplex } from 'node:stream';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { WebSocket } from 'ws';
import { httpBackend } from '../../support/backend.ts';
import { expectNothingSent } from '../../support/nothing-sent.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, chunk, codeOf, head, Wire } from '../../support/wire.ts';

let stack: Stack;
beforeAll(async () => {
  stack = await openStack();
});
afterAll(() => stack.close());

function dial(
  { port }: Pick<Stack, 'port'>,
  headers: Record<string, string> = {},
  path = '/v3/ws',
): WebSocket {
  const authorization = 'Bearer sk_sandbox_alpha';
  const ws = new WebSocket(`ws://127.0.0.1:${port}${path}`, { headers: { authorization, ...headers } });
  ws.on('error', () => {});
  onTestFinished(() => ws.terminate());
  return ws;
}

const HANDSHAKE = [
  'Connection: Upgrade',
  'Upgrade: websocket',
  'Sec-WebSocket-Version: 13',
  'Sec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==',
];

const nothingOpen = async (of: Stack) => {
  await until(async () => (await of.gateway.metrics.text()).includes('oncegate_in_flight 0'));
};

describe('an authenticated WebSocket', () => {
  test('carries text and binary messages in both directions, small and large', async () => {
    const ws = dial(stack);
    await once(ws, 'open');
    for (const message of ['hello', 'ä€😀', 'x'.repeat(60_000)]) {
      ws.send(message);
      expect(String((await once(ws, 'message'))[0])).toBe(message);
    }
    const bytes = Buffer.from([0, 1, 254, 255]);
    ws.send(bytes);
    const [back, binary] = (await once(ws, 'message')) as [Buffer, boolean];
    expect([binary, back]).toEqual([true, bytes]);
    ws.ping();
    await once(ws, 'pong');
    ws.close(1000, 'bye');
    expect((await once(ws, 'close'))[0]).toBe(1000);
    await nothingOpen(stack);
  });

  test('may send its first frame together with its handshake', async () => {
    const wire = await Wire.open(stack.port);
    wire.write(head('GET /v3/ws', ALPHA, ...HANDSHAKE) + FRAME);
    expect((await wire.answer()).status).toBe(101);
    await wire.hears('\x81\x05hello');
  });

  test('has the merchant’s code, and no other', async () => {
    const forged = { 'X-Merchant-Code': 'M-BRAVO', x_merchant_code: 'M-BRAVO', 'X-Request-Id': 'upgrade-1' };
    await once(dial(stack, forged), 'open');
    const seen = stack.sandbox.requests.lastUpgrade?.rawHeaders ?? [];
    const valuesOf = (wanted: string) =>
      seen.filter(([name]) => name.toLowerCase() === wanted).map(([, v]) => v);
    expect(valuesOf('x-merchant-code')).toEqual(['M-ALPHA']);
    expect(valuesOf('x-request-id')).toEqual(['upgrade-1']);
    expect(valuesOf('authorization')).toEqual(['Bearer sk_sandbox_alpha']);
    expect(valuesOf('upgrade')).toEqual(['websocket']);
    expect(valuesOf('x-forwarded-for')).toEqual(['127.0.0.1']);
    expect(JSON.stringify(seen)).not.toContain('M-BRAVO');
  });

  test('negotiates a subprotocol with the backend', async () => {
    const headers = { authorization: 'Bearer sk_sandbox_alpha' };
    const ws = new WebSocket(`ws://127.0.0.1:${stack.port}/v3/ws`, ['payments.v1', 'payments.v2'], {
      headers,
    });
    onTestFinished(() => ws.terminate());
    await once(ws, 'open');
    expect(ws.protocol).toBe('payments.v1');
  });

  test('is closed at the backend when the merchant disconnects', async () => {
    const { promise: opened, resolve: open } = Promise.withResolvers<Duplex>();
    const behind = await inFrontOfUpgrades((_req, socket) => {
      acceptUpgrade(socket);
      open(socket);
    });
    const wire = await Wire.open(behind.port);
    expect((await wire.write(head('GET /v3/ws', ALPHA, ...HANDSHAKE)).answer()).status).toBe(101);
    const closed = once(await opened, 'close');
    wire.socket.resetAndDestroy();
    await closed;
    await nothingOpen(behind);
  });
});

describe('is refused on the socket and not sent to the backend:', () => {
  const refused = async (line: string, ...fields: string[]) =>
    await expectNothingSent(stack, async () => {
      const wire = await Wire.open(stack.port);
      const answer = await wire.write(head(line, ...HANDSHAKE, ...fields)).answer();
      expect(answer.headers.connection).toEqual(['close']);
      expect(answer.headers['content-type']).toEqual(['application/problem+json']);
      await wire.ended;
      expect(wire.rest).toBe('');
      return answer;
    });

  test.each([
    ['no credentials', [], [401, 'missing_credentials']],
    ['credentials twice', [ALPHA, ALPHA], [401, 'missing_credentials']],
    ['an unknown key', ['Authorization: Bearer sk_no'], [401, 'invalid_key']],
    ['a revoked key', ['Authorization: Bearer sk_test_revoked'], [401, 'invalid_key']],
    ['a key without the scope', ['Authorization: Bearer sk_test_balance_only'], [403, 'insufficient_scope']],
    ['two hosts', [ALPHA, 'Host: other.test'], [400, 'invalid_request']],
  ])('%s', async (_name, fields, expected) => {
    const answer = await refused('GET /v3/ws', ...fields);
    expect([answer.status, codeOf(answer)]).toEqual(expected);
    const challenged = answer.status === 401 || answer.status === 403;
    expect('www-authenticate' in answer.headers).toBe(challenged);
  });

  test.each(['//v3/ws', '/v3/../v3/ws', '/v3%2fws', 'http://evil.test/v3/ws', '/v3/ws#x'])(
    'the ambiguous target %s',
    async (target) => {
      const answer = await refused(`GET ${target}`, ALPHA);
      expect([answer.status, codeOf(answer)]).toEqual([400, 'invalid_target']);
    },
  );

  test.each(['/V1/index.php', '/v1/index.php/x'])(
    'the lookalike %s, with a key without the scope',
    async (target) => {
      const answer = await refused(`GET ${target}`, 'Authorization: Bearer sk_test_balance_only');
      expect([answer.status, codeOf(answer)]).toEqual([403, 'insufficient_scope']);
    },
  );

  test('and a client library reports the status', async () => {
    const ws = dial(stack, { authorization: 'Bearer sk_no' });
    const [, res] = (await once(ws, 'unexpected-response')) as [unknown, IncomingMessage];
    expect(res.statusCode).toBe(401);
  });
});

describe('a refused upgrade leaves no connection open', () => {
  test.each<[string, (wire: Wire) => void]>([
    ['the merchant does not close', () => {}],
    ['the merchant continues to send', (wire) => void wire.write(FRAME)],
    ['the merchant continues to send and closes', (wire) => void wire.write(FRAME).socket.end()],
  ])('even if %s', async (_how, then) => {
    const own = await openStack();
    onTestFinished(() => own.close());
    const wire = await Wire.open(own.port);
    wire.socket.allowHalfOpen = true;
    expect((await wire.write(head('GET /v3/ws', ...HANDSHAKE)).answer()).status).toBe(401);
    then(wire);
    await nothingOpen(own);
  });
});

/** A text frame, with a mask of zeros. */
const FRAME = '\x81\x85\0\0\0\0hello';

/** A gateway in front of a backend that handles upgrades with `onUpgrade`. */
async function inFrontOfUpgrades(
  onUpgrade: (req: IncomingMessage, socket: Duplex) => void,
  upstream: { responseTimeoutMs?: number } = {},
): Promise<Stack> {
  const url = await httpBackend(
    (_req, res) => res.end(),
    (server) => server.on('upgrade', onUpgrade),
  );
  const behind = await openStack({ upstream: { url, ...upstream } });
  onTestFinished(() => behind.close());
  return behind;
}

function acceptUpgrade(socket: Duplex): void {
  socket.on('error', () => {}).on('end', () => socket.end());
  socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n');
  socket.resume();
}

describe('a backend that', () => {
  const answered = async (behind: Stack) => {
    const wire = await Wire.open(behind.port);
    const answer = await wire.write(head('GET /v3/ws', ALPHA, ...HANDSHAKE)).answer();
    await wire.ended;
    await nothingOpen(behind);
    return answer;
  };

  test('refuses the upgrade: its answer is passed on, with new framing', async () => {
    const behind = await inFrontOfUpgrades((_req, socket) => {
      socket.end(
        `HTTP/1.1 426 Upgrade Required\r\nTransfer-Encoding: chunked\r\n\r\n${chunk('no')}0\r\n\r\n`,
      );
    });
    const answer = await answered(behind);
    expect([answer.status, answer.body.toString()]).toEqual([426, 'no']);
  });

  test('refuses the upgrade of a merchant who has sent a frame already: no connection stays open', async () => {
    const behind = await inFrontOfUpgrades((_req, socket) => {
      socket.end('HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\n\r\n');
    });
    const wire = await Wire.open(behind.port);
    wire.write(head('GET /v3/ws', ALPHA, ...HANDSHAKE) + FRAME);
    expect((await wire.answer()).status).toBe(426);
    await nothingOpen(behind);
  });

  test('closes without a response: 502 outcome_unknown', async () => {
    const answer = await answered(await inFrontOfUpgrades((_req, socket) => void socket.end()));
    expect([answer.status, codeOf(answer)]).toEqual([502, 'outcome_unknown']);
  });

  test('does not answer: 504 outcome_unknown', async () => {
    const answer = await answered(await inFrontOfUpgrades(() => {}, { responseTimeoutMs: 1000 }));
    expect([answer.status, codeOf(answer)]).toEqual([504, 'outcome_unknown']);
  });

  test('resets an open WebSocket: it is closed, and nothing is written into it', async () => {
    const behind = await inFrontOfUpgrades((_req, socket) => {
      acceptUpgrade(socket);
      (socket as import('node:net').Socket).once('data', () =>
        (socket as import('node:net').Socket).resetAndDestroy(),
      );
    });
    const wire = await Wire.open(behind.port);
    expect((await wire.write(head('GET /v3/ws', ALPHA, ...HANDSHAKE)).answer()).status).toBe(101);
    wire.write('x');
    await wire.ended;
    expect(wire.rest).toBe('');
    await nothingOpen(behind);
  });
});
