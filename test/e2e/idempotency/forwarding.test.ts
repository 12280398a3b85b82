import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import { payoutBytes, rawExchange } from '../../support/raw.ts';
import { linesOf, type RecordingBackend, startRecordingBackend } from '../../support/recording-backend.ts';
import type { Stack } from '../../support/stack.ts';
import { openStackOn } from '../../support/stores.ts';

let backend: RecordingBackend;
let stack: Stack;
beforeAll(async () => {
  backend = await startRecordingBackend('HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok');
  stack = await openStackOn('sqlite', { upstream: { url: backend.url } });
});
afterAll(async () => {
  await stack?.close();
  await backend?.[Symbol.asyncDispose]();
});
beforeEach(() => {
  backend.received.length = 0;
});

/** The request that the backend gets for a payout with these header lines. */
async function forwarded(lines: string[], body?: string) {
  const bytes = payoutBytes(body === undefined ? { lines } : { lines, body });
  const [answer] = await rawExchange(stack.port, bytes);
  expect(answer?.status).toBe(201);
  expect(backend.received).toHaveLength(1);
  return backend.received[0] ?? expect.fail('nothing was sent');
}

it('the backend is asked for no encoding, whatever the merchant accepts', async () => {
  const lines = [
    `x-service-idempotency: ${randomUUID()}`,
    'Accept-Encoding: gzip, br',
    'accept-encoding: zstd',
  ];
  const { rawHeaders } = await forwarded(lines);
  expect(linesOf(rawHeaders, 'accept-encoding')).toEqual(['identity']);
});

it('the backend gets the key as it was sent', async () => {
  const key = randomUUID();
  const { rawHeaders } = await forwarded([`X-Service-Idempotency: ${key}`, `IDEMPOTENCY-KEY: "${key}"`]);
  expect(linesOf(rawHeaders, 'x-service-idempotency')).toEqual([key]);
  expect(linesOf(rawHeaders, 'idempotency-key')).toEqual([`"${key}"`]);
  expect(rawHeaders).toContain('X-Service-Idempotency');
  expect(rawHeaders).toContain('IDEMPOTENCY-KEY');
});

it('a Connection header cannot take away the key or the secret key', async () => {
  const key = randomUUID();
  const { rawHeaders } = await forwarded([
    'Connection: close, x-service-idempotency, idempotency-key, authorization, content-type, x-private',
    `x-service-idempotency: ${key}`,
    `Idempotency-Key: "${key}"`,
    'X-Private: 1',
  ]);
  expect(linesOf(rawHeaders, 'x-service-idempotency')).toEqual([key]);
  expect(linesOf(rawHeaders, 'idempotency-key')).toEqual([`"${key}"`]);
  expect(linesOf(rawHeaders, 'authorization')).toEqual(['Bearer sk_sandbox_alpha']);
  expect(linesOf(rawHeaders, 'content-type')).toEqual(['application/json']);
  expect(linesOf(rawHeaders, 'x-private')).toEqual([]);
});

it('the body arrives byte for byte, with its length', async () => {
  const body = `{ "action" : "withdraw",\r\n\t"amount":1e1 , "note":"\\u00e9 é ${'x'.repeat(70_000)}" }`;
  const received = await forwarded([`x-service-idempotency: ${randomUUID()}`], body);
  expect(received.body.toString()).toBe(body);
  expect(linesOf(received.rawHeaders, 'content-length')).toEqual([String(Buffer.byteLength(body))]);
  expect(linesOf(received.rawHeaders, 'transfer-encoding')).toEqual([]);
});

it('the backend gets the merchant code and the request id from the gateway only', async () => {
  const { rawHeaders } = await forwarded([
    `x-service-idempotency: ${randomUUID()}`,
    'X-Merchant-Code: M-BRAVO',
    'X_Merchant_Code: M-BRAVO',
    'X-Request-Id: order-7.retry_1',
  ]);
  expect(linesOf(rawHeaders, 'x-merchant-code')).toEqual(['M-ALPHA']);
  expect(linesOf(rawHeaders, 'x_merchant_code')).toEqual([]);
  expect(linesOf(rawHeaders, 'x-request-id')).toEqual(['order-7.retry_1']);
});

it('a client that waits for 100 Continue gets it, and Expect is not forwarded', async () => {
  const { rawHeaders } = await forwardedAfterContinue();
  expect(linesOf(rawHeaders, 'expect')).toEqual([]);
});

async function forwardedAfterContinue() {
  const lines = [`x-service-idempotency: ${randomUUID()}`, 'Expect: 100-continue'];
  const [invitation, answer] = await rawExchange(stack.port, payoutBytes({ lines }));
  expect([invitation?.status, answer?.status]).toEqual([100, 201]);
  return backend.received[0] ?? expect.fail('nothing was sent');
}
