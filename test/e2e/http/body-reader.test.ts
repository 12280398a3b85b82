import type { IncomingMessage, ServerResponse } from 'node:http';
import { buffer } from 'node:stream/consumers';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { describe, expect, test, vi } from 'vitest';
import { httpBackend } from '../../support/backend.ts';
import { bodyOf } from '../../support/body.ts';
import { chunk, head, LAST_CHUNK, request, Wire } from '../../support/wire.ts';

const CHUNKED = head('POST /', 'Transfer-Encoding: chunked');

/** A connection to a server that passes its requests to the test. */
async function serving(
  onRequest: (req: IncomingMessage, res: ServerResponse) => Promise<void>,
): Promise<Wire> {
  const url = await httpBackend((req, res) => void onRequest(req, res).catch((error) => res.end(`${error}`)));
  return await Wire.open(Number(new URL(url).port));
}

describe('a body over the limit', () => {
  const text = Array.from({ length: 5000 }, (_, i) => `${i} `).join('');
  const cut = (size: number) => text.match(new RegExp(`.{1,${size}}`, 'gs')) ?? [];

  test.each([
    ['of known length', () => request('POST /', [], text)],
    ['in large chunks', () => Buffer.from(CHUNKED + cut(9000).map(chunk).join('') + LAST_CHUNK)],
    ['in small chunks', () => Buffer.from(CHUNKED + cut(7).map(chunk).join('') + LAST_CHUNK)],
    ['that exceeds it with its last byte', () => request('POST /', [], text.slice(0, 10_001))],
  ])('%s can be restored and read again, whole', async (name, bytes) => {
    const whole = name.includes('last byte') ? text.slice(0, 10_001) : text;
    const wire = await serving(async (req, res) => {
      expect(await bodyOf(req, 10_000, 1000)).toEqual({ taken: 'too_large' });
      res.end(await buffer(req));
    });
    expect((await wire.write(bytes()).answer()).body.toString()).toBe(whole);
    // The connection is still in sync: the next request is answered, too.
    expect((await wire.write(bytes()).answer()).body.toString()).toBe(whole);
  });

  test('can be restored while the rest of it has not arrived', async () => {
    const { promise: stopped, resolve: stop } = Promise.withResolvers<void>();
    const wire = await serving(async (req, res) => {
      await bodyOf(req, 10, 1000);
      stop();
      res.end(await buffer(req));
    });
    wire.write(CHUNKED + chunk('0123456789') + chunk('a'));
    await stopped;
    const answer = await wire.write(chunk('later') + LAST_CHUNK).answer();
    expect(answer.body.toString()).toBe('0123456789alater');
  });
});

/** Bytes in use after a full garbage collection. */
function liveBytes(): number {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  collect();
  collect();
  const { heapUsed, arrayBuffers } = process.memoryUsage();
  return heapUsed + arrayBuffers;
}

test('a body in chunks of one byte takes memory of at most about twice its size', async () => {
  const limit = 200_000;
  const { promise: read, resolve: finish } = Promise.withResolvers<unknown>();
  let seen = 0;
  const wire = await serving(async (req, res) => {
    const result = bodyOf(req, limit, 20_000);
    req.on('data', (bytes: Buffer) => {
      seen += bytes.length;
    });
    finish(await result);
    res.end();
  });
  const before = liveBytes();
  wire.write(CHUNKED);
  const some = chunk('x').repeat(1000);
  for (let sent = 0; sent < limit; sent += 1000) {
    wire.write(some);
    // Bytes that have not been read yet must not count.
    await vi.waitUntil(() => seen === sent + 1000, { interval: 1, timeout: 10_000 });
  }
  const grown = liveBytes() - before;
  wire.write(LAST_CHUNK);
  expect(await read).toEqual({ taken: 'read', body: Buffer.alloc(limit, 'x') });
  expect(grown).toBeLessThan(2.5 * limit);
});

test('a body of two bytes with a large Content-Length takes little memory', async () => {
  const declared = 1_000_000;
  const reading: Promise<unknown>[] = [];
  const before = liveBytes();
  for (let i = 0; i < 10; i++) {
    const { promise: arrived, resolve: arrive } = Promise.withResolvers<void>();
    const wire = await serving(async (req, res) => {
      reading.push(bodyOf(req, declared, 20_000));
      let bytes = 0;
      req.on('data', (some: Buffer) => {
        bytes += some.length;
        if (bytes === 2) arrive();
        else wire.write('y');
      });
      res.on('error', () => {});
    });
    wire.write(`${head('POST /', `Content-Length: ${declared}`)}x`);
    await arrived;
  }
  expect(liveBytes() - before).toBeLessThan(3_000_000);
});
