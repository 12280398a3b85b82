import { createHash } from 'node:crypto';
import { describe, expect, it } from 'vitest';
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
