import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { request as httpRequest } from 'node:http';
import { describe, expect, it, vi } from 'vitest';
import { WebSocket } from 'ws';
import { until } from '../support/until.ts';
import { ask, openSandbox, RawConnection } from './support.ts';

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

describe('/v3/stream', () => {
  it('flushes each chunk', async () => {
    const { port } = await openSandbox();
    const request = httpRequest({ port, path: '/v3/stream?chunks=4&intervalMs=30', agent: false }).end();
    const [response] = await once(request, 'response');
    const chunks: string[] = [];
    for await (const chunk of response) chunks.push(String(chunk));
    expect(chunks).toEqual([1, 2, 3, 4].map((n) => `data: chunk ${n}\n\n`));
    expect(response.headers['content-type']).toBe('text/event-stream');
  });

  it('ends when the client disconnects', async () => {
    const log = vi.fn();
    const { port } = await openSandbox({ log });
    const bytes = 'GET /v3/stream?chunks=100000&intervalMs=1 HTTP/1.1\r\nHost: x\r\n\r\n';
    const { socket } = new RawConnection(port, bytes);
    await once(socket, 'data');
    socket.destroy();
    await until(() => log.mock.calls.length > 0);
    expect(log).toHaveBeenCalledOnce();
  });
});

describe('/v3/ws', () => {
  it('sends every message back, and keeps the headers of the upgrade for /_sandbox/last-upgrade', async () => {
    const { url, requests } = await openSandbox();
    const socket = new WebSocket(`${url.replace('http', 'ws')}/v3/ws?q=1`, ['chat'], {
      headers: { 'X-Who': 'me' },
    });
    await once(socket, 'open');
    expect(socket.protocol).toBe('chat');
    for (const message of ['hello', 'ünïcode', 'x'.repeat(50_000)]) {
      socket.send(message);
      const [data, isBinary] = await once(socket, 'message');
      expect({ text: String(data), isBinary }).toEqual({ text: message, isBinary: false });
    }
    socket.ping('p');
    expect(String((await once(socket, 'pong'))[0])).toBe('p');
    socket.send('frag', { fin: false });
    socket.send('mented', { fin: true });
    expect(String((await once(socket, 'message'))[0])).toBe('fragmented');
    socket.close(4321, 'bye');
    expect((await once(socket, 'close'))[0]).toBe(4321);

    expect(requests.ofPath('GET /v3/ws')).toBe(1);
    const last = (await ask(`${url}/_sandbox/last-upgrade`)).json;
    expect(last.url).toBe('/v3/ws?q=1');
    expect(last.rawHeaders).toContainEqual(['X-Who', 'me']);
  });

  it('refuses frames that are too large or not masked, and faulty handshakes', async () => {
    const { url, port } = await openSandbox();
    const socket = new WebSocket(`${url.replace('http', 'ws')}/v3/ws`);
    await once(socket, 'open');
    socket.send('x'.repeat(70_000));
    expect((await once(socket, 'close'))[0]).toBe(1009);

    const upgrade = 'GET /v3/ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n';
    const handshake = `${upgrade}Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n`;
    const { bytes } = await new RawConnection(port, `${handshake}\u0001\u0002ab`).ended;
    expect(bytes).toMatch(/^HTTP\/1\.1 101 /);
    expect(bytes.endsWith('\u0088\u0002\u0003\u00ea')).toBe(true);
    expect((await new RawConnection(port, `${upgrade}\r\n`).ended).bytes).toMatch(/^HTTP\/1\.1 400 /);
    const faulty = `${upgrade}X-Sandbox-Fault: hang\r\n\r\n`;
    expect((await new RawConnection(port, faulty).ended).bytes).toContain('invalid_fault');
  });

  it('is the only path that upgrades: elsewhere the Upgrade header is ignored', async () => {
    const { url } = await openSandbox();
    const headers = {
      connection: 'Upgrade, HTTP2-Settings',
      upgrade: 'h2c',
      'http2-settings': 'AAMAAABkAAQ',
    };
    expect((await ask(`${url}/v3/echo`, { headers })).status).toBe(200);
  });
});
