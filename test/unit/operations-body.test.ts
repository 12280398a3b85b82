import type { IncomingMessage } from 'node:http';
import { PassThrough } from 'node:stream';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { bodyOf } from '../support/body.ts';

beforeEach(() => void vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] }));
afterEach(() => void vi.useRealTimers());

/** The part of a request that reading its body uses. */
const newRequest = () => Object.assign(new PassThrough(), { headers: { 'transfer-encoding': 'chunked' } });
type Request = ReturnType<typeof newRequest>;

const read = (req: Request, maxBytes = 10, timeoutMs = 1000) =>
  bodyOf(req as unknown as IncomingMessage, maxBytes, timeoutMs);

describe('a body', () => {
  test('is read whole, however it is split into chunks', async () => {
    const req = newRequest();
    const result = read(req);
    for (const piece of ['ab', 'c', 'defg']) req.write(piece);
    req.end();
    expect(await result).toEqual({ taken: 'read', body: Buffer.from('abcdefg') });
  });

  test('may be empty, or exactly as long as the limit', async () => {
    for (const text of ['', '0123456789'])
      expect(await read(newRequest().end(text))).toEqual({ taken: 'read', body: Buffer.from(text) });
  });
});

describe('reading stops at once', () => {
  test('when the limit is exceeded', async () => {
    const req = newRequest();
    const result = read(req);
    req.write('0123456789');
    req.write('x');
    expect(await result).toEqual({ taken: 'too_large' });
    expect(req.isPaused()).toBe(true);
    expect(req.read()).toEqual(Buffer.from('0123456789x'));
  });

  test('when the time for the whole body is over; a byte does not extend it', async () => {
    const req = newRequest();
    const result = read(req);
    for (let i = 0; i < 3; i++) {
      req.write('x');
      await vi.advanceTimersByTimeAsync(333);
    }
    await vi.advanceTimersByTimeAsync(1);
    expect(await result).toMatchObject({ taken: { code: 'request_timeout' } });
  });

  test('when the merchant disconnects, or the connection is reset', async () => {
    for (const reason of [undefined, new Error('reset')]) {
      const req = newRequest();
      const result = read(req);
      req.write('abc');
      req.destroy(reason);
      expect(await result).toEqual({ taken: 'gone' });
    }
  });
});

test('a finished reader leaves no timer and does not throw a later error', async () => {
  const req = newRequest();
  const result = read(req);
  req.end('abc');
  await result;
  expect(vi.getTimerCount()).toBe(0);
  expect(() => req.emit('error', new Error('late'))).not.toThrow();
});
