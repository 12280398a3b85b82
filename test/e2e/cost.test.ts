import { randomUUID } from 'node:crypto';
import http from 'node:http';
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from 'vitest';
import { listen } from '../../src/gateway/http-server.ts';
import { send, withdraw } from '../support/client.ts';
import { openStack, type Stack } from '../support/stack.ts';

const REQUESTS = 20;
const LARGE_BYTES = 16_384;

/** The cost of a request, in counts and not in times. */
describe('it costs', () => {
  let stack: Stack;
  let backend: http.Server;
  let connections = 0;
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  const authorization = 'Bearer sk_sandbox_alpha';
  const balance = () => send(stack.url, { path: '/v2/get_balance', headers: { authorization }, agent });
  const pay = (key: string) => withdraw(stack.url, { key, agent });

  beforeAll(async () => {
    backend = http.createServer((req, res) => {
      req.resume().once('end', () => res.writeHead(201, { 'content-length': 2 }).end('{}'));
    });
    backend.on('connection', () => connections++);
    const port = await listen(backend, '127.0.0.1', 0);
    stack = await openStack({ upstream: { url: `http://127.0.0.1:${port}`, keepAliveMs: 60_000 } });
    for (let i = 0; i < REQUESTS; i++) await Promise.all([balance(), pay(randomUUID())]);
  });
  afterAll(async () => {
    agent.destroy();
    await stack?.close();
    backend.closeAllConnections();
    backend.close();
  });
  afterEach(() => vi.restoreAllMocks());

  it('no connection to the backend more than are in use at once', async () => {
    const before = connections;
    for (let i = 0; i < REQUESTS; i++) {
      await balance();
      await pay(randomUUID());
    }
    expect(connections - before).toBe(0);
  });

  it('no large buffer', async () => {
    const sizes: number[] = [];
    for (const name of ['alloc', 'allocUnsafe', 'allocUnsafeSlow'] as const) {
      const allocate = Buffer[name].bind(Buffer) as (size: number, ...more: never[]) => Buffer<ArrayBuffer>;
      vi.spyOn(Buffer, name).mockImplementation((size: number, ...more: unknown[]) => {
        sizes.push(size);
        return allocate(size, ...(more as never[]));
      });
    }
    for (let i = 0; i < REQUESTS; i++) {
      await balance();
      await pay(randomUUID());
    }
    expect(sizes.length).toBeGreaterThan(0);
    expect(sizes.filter((size) => size >= LARGE_BYTES)).toEqual([]);
  });
});
