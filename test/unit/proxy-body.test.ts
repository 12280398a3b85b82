import type { IncomingMessage } from 'node:http';
import { PassThrough } from 'node:stream';
import { gzipSync } from 'node:zlib';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { readBody } from '../../src/operations/body.ts';

beforeEach(() => void vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] }));
afterEach(() => void vi.useRealTimers());

/** A request as far as its body goes. */
const newRequest = (headers: Record<string, string> = {}) => Object.assign(new PassThrough(), { headers });
type Request = ReturnType<typeof newRequest>;

const read = (req: Request, maxBytes = 10, timeoutMs = 1000) =>
  readBody(req as unknown as IncomingMessage, maxBytes, timeoutMs);

describe('a body', () => {
  test('is read whole, in whatever pieces it comes', async () => {
    const req = newRequest();
    const result = read(req);
    for (const piece of ['ab', 'c', 'defg']) req.write(piece);
    req.end();
    expect(await result).toEqual({ kind: 'body', body: Buffer.from('abcdefg') });
  });

  test('may be empty', async () => {
    expect(await read(newRequest().end())).toEqual({ kind: 'body', body: Buffer.alloc(0) });
  });

  test('stays as it came, encoded or not', async () => {
    const bytes = gzipSync('withdraw');
    const req = newRequest({ 'content-encoding': 'gzip' }).end(bytes);
    expect(await read(req, 100)).toEqual({ kind: 'body', body: bytes });
  });

  test('may have exactly the limit', async () => {
    expect(await read(newRequest().end('0123456789'))).toMatchObject({ kind: 'body' });
  });
});

describe('reading ends at once', () => {
  test('past the limit, without waiting for the end', async () => {
    const req = newRequest();
    const result = read(req);
    req.write('0123456789');
    req.write('x');
    expect(await result).toEqual({ kind: 'too_large', read: Buffer.from('0123456789x') });
    expect(req.isPaused()).toBe(true);
  });

  test('when the time is over, which does not begin anew with each byte', async () => {
    const req = newRequest();
    const result = read(req);
    for (let i = 0; i < 3; i++) {
      req.write('x');
      await vi.advanceTimersByTimeAsync(333);
    }
    await vi.advanceTimersByTimeAsync(1);
    expect(await result).toEqual({ kind: 'timeout' });
  });

  test('when the merchant leaves', async () => {
    const req = newRequest();
    const result = read(req);
    req.write('abc');
    req.destroy();
    expect(await result).toEqual({ kind: 'aborted' });
  });

  test('when the connection breaks', async () => {
    const req = newRequest();
    const result = read(req);
    req.destroy(new Error('reset'));
    expect(await result).toEqual({ kind: 'aborted' });
  });
});

test('leaves no timer, and a later error is not thrown', async () => {
  const req = newRequest();
  const result = read(req);
  req.end('abc');
  await result;
  expect(vi.getTimerCount()).toBe(0);
  expect(() => req.emit('error', new Error('late'))).not.toThrow();
});
