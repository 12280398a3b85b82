import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { describe, expect, it } from 'vitest';
import { WebSocket } from 'ws';
import { echoingWebSockets } from '../support/web-sockets.ts';
import { ask, openSandbox } from './support.ts';

describe('/v3/echo', () => {
  it('answers with the request as it was received', async () => {
    const { url } = await openSandbox();
    // Larger than the limit of the payment endpoints. The echo has no limit, because it keeps no body in memory.
    const body = Buffer.alloc(3_000_000, 7);
    const headers = { 'X-OdD': 'Case', 'content-length': String(body.length) };
    const { json } = await ask(`${url}/v3/echo?a=%2F&b`, { method: 'PATCH', headers, body });
    expect(json).toMatchObject({
      method: 'PATCH',
      url: '/v3/echo?a=%2F&b',
      httpVersion: '1.1',
      bodyBytes: 3_000_000,
      bodySha256: createHash('sha256').update(body).digest('hex'),
    });
    expect(json.rawHeaders).toContainEqual(['X-OdD', 'Case']);
  });
});

it('only WebSockets are upgraded, and only if somebody takes them', async () => {
  const { url, requests } = await openSandbox({ onUpgrade: echoingWebSockets() });
  const socket = new WebSocket(`${url.replace('http', 'ws')}/v3/ws`);
  await once(socket, 'open');
  socket.send('hello');
  expect(String((await once(socket, 'message'))[0])).toBe('hello');
  expect(requests.ofPath('GET /v3/ws')).toBe(1);
  const h2c = { connection: 'Upgrade, HTTP2-Settings', upgrade: 'h2c', 'http2-settings': 'AAMAAABkAAQ' };
  expect((await ask(`${url}/v3/echo`, { headers: h2c })).status).toBe(200);
  const { url: without } = await openSandbox();
  const webSocket = { connection: 'Upgrade', upgrade: 'websocket' };
  expect((await ask(`${without}/v3/echo`, { headers: webSocket })).status).toBe(200);
});
