import { once } from 'node:events';
import http, { type IncomingMessage, type ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, onTestFinished, test } from 'vitest';
import { httpBackend } from '../../support/backend.ts';
import { openFloodingBackend } from '../../support/flooding-backend.ts';
import { openStack } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, codeOf, head, Wire } from '../../support/wire.ts';

const HANDSHAKE = [
  'Connection: Upgrade',
  'Upgrade: websocket',
  'Sec-WebSocket-Version: 13',
  'Sec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==',
];
const authorised = { Authorization: 'Bearer sk_sandbox_alpha' };

/** A gateway with `maxStreams: 2`, in front of a backend that answers when the test does. */
async function openForTwo() {
  const held: ServerResponse[] = [];
  const sockets: Duplex[] = [];
  const url = await httpBackend(
    (_req, res) => void held.push(res),
    (server) =>
      server.on('upgrade', (_req, socket) => {
        sockets.push(socket);
        socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n');
        socket.on('end', () => socket.end()).resume();
      }),
  );
  const stack = await openStack({ upstream: { url, maxStreams: 2, responseTimeoutMs: 60_000 } });
  onTestFinished(() => stack.close());
  const ask = async (...fields: string[]) =>
    (await Wire.open(stack.port)).write(head('GET /v3/stream', ALPHA, ...fields));
  const sent = () => held.length + sockets.length;
  const expectRefused = async () => {
    const before = sent();
    for (const fields of [[], HANDSHAKE]) {
      const answer = await (await ask(...fields)).answer();
      const { status, headers } = answer;
      expect([status, codeOf(answer), headers['retry-after']]).toEqual([503, 'overloaded', ['1']]);
    }
    expect(sent()).toBe(before);
  };
  return { stack, held, sockets, ask, sent, expectRefused };
}

describe('with maxStreams: 2, a third stream is refused and not sent', () => {
  test('until one of two requests is answered', async () => {
    const { held, ask, sent, expectRefused } = await openForTwo();
    const first = await ask();
    await ask();
    await until(() => sent() === 2);
    await expectRefused();
    held[0]?.end('done');
    expect((await first.answer()).body.toString()).toBe('done');
    await ask();
    await until(() => sent() === 3);
    await expectRefused();
  });

  test('until one of two WebSockets is closed, by the backend or the merchant', async () => {
    const { sockets, ask, sent, expectRefused } = await openForTwo();
    const [first, second] = [await ask(...HANDSHAKE), await ask(...HANDSHAKE)];
    expect([(await first.answer()).status, (await second.answer()).status]).toEqual([101, 101]);
    await expectRefused();
    sockets[0]?.end();
    await Promise.race([first.ended, second.ended]);
    expect((await opened(ask)).status).toBe(101);
    await expectRefused();
    first.socket.destroy();
    second.socket.destroy();
    expect((await opened(ask)).status).toBe(101);
    expect(sent()).toBe(4);
  });

  test('until one of two merchants disconnects', async () => {
    const { ask, sent, expectRefused } = await openForTwo();
    const wires = [await ask(), await ask()];
    await until(() => sent() === 2);
    await expectRefused();
    wires[0]?.socket.destroy();
    expect((await opened(ask)).status).toBe(101);
    await expectRefused();
  });

  test('until a merchant with two pipelined requests disconnects', async () => {
    const { held, ask, sent, expectRefused } = await openForTwo();
    const wire = await ask();
    wire.write(head('GET /v3/stream', ALPHA));
    await until(() => sent() === 2);
    held[1]?.end('done, and queued behind the first one');
    await expectRefused();
    wire.socket.destroy();
    for (const _ of ['first', 'second']) expect((await opened(ask)).status).toBe(101);
    await expectRefused();
  });
});

/** Repeats the handshake until it is accepted. */
async function opened(ask: (...fields: string[]) => Promise<Wire>) {
  return await until(async () => {
    const answer = await (await ask(...HANDSHAKE)).answer();
    return answer.status === 101 ? answer : undefined;
  });
}

describe('a merchant of a response that is passed through', () => {
  const limits = { answerTimeoutMs: 500 };

  async function download(path: string, url: string): Promise<IncomingMessage> {
    const asking = http.get(`${url}${path}`, { agent: false, headers: authorised });
    onTestFinished(() => void asking.destroy());
    const [response] = (await once(asking, 'response')) as [IncomingMessage];
    return response.on('error', () => {});
  }

  test('who does not read it loses the connection, and the one to the backend is closed', async () => {
    const backend = await openFloodingBackend();
    const stack = await openStack({ upstream: { url: backend.url }, limits });
    onTestFinished(() => stack.close());
    const response = await download('/v3/endless', stack.url);
    await until(() => backend.streams === 0);
    expect(backend.connections.open).toBe(0);
    await expect(response.toArray()).rejects.toThrow('aborted');
  });

  test('who reads it slowly keeps the connection', async () => {
    const backend = await openFloodingBackend();
    const stack = await openStack({ upstream: { url: backend.url }, limits: { answerTimeoutMs: 1000 } });
    onTestFinished(() => stack.close());
    const response = await download('/v3/endless', stack.url);
    let bytes = 0;
    response.on('data', (piece: Buffer) => {
      bytes += piece.length;
      if (bytes % 3_000_000 >= piece.length) return;
      response.pause();
      setTimeout(() => response.resume(), 100);
    });
    await Promise.race([once(response, 'close'), sleep(5000)]);
    expect(backend.streams).toBe(1);
  });

  test('who waits for the next chunk keeps the connection', async () => {
    const held: ServerResponse[] = [];
    const url = await httpBackend((_req, res) => void held.push(res.writeHead(200)));
    const stack = await openStack({ upstream: { url }, limits });
    onTestFinished(() => stack.close());
    const wire = await Wire.open(stack.port);
    wire.write(head('GET /v3/stream', ALPHA));
    await until(() => held.length === 1);
    held[0]?.write('one');
    await sleep(1700);
    held[0]?.end('two');
    expect((await wire.answer()).body.toString()).toBe('onetwo');
  });
});
