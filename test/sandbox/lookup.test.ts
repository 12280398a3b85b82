import { describe, expect, it } from 'vitest';
import { ALPHA, ask, openSandbox, post, WITHDRAW } from './support.ts';

const TOKEN = 'a-lookup-token';
const headers = { authorization: `Bearer ${TOKEN}` };
const path = (merchant: string, key: string) => `/v1/transactions?merchant=${merchant}&key=${key}`;

describe('a lookup', () => {
  it('answers with the body of the first execution, or with 404 if there was none', async () => {
    const { url } = await openSandbox({ lookupToken: TOKEN });
    const keyed = { ...ALPHA, 'x-service-idempotency': 'order/1' };
    const paid = await post(url, WITHDRAW, keyed);
    await post(url, WITHDRAW, keyed);
    const found = await ask(`${url}${path('M-ALPHA', 'order%2F1')}`, { headers });
    expect(found.status).toBe(200);
    expect(found.body).toEqual(paid.body);
    const charging = { ...ALPHA, 'idempotency-key': 'charge' };
    const charged = await ask(`${url}/v1/charges`, { method: 'POST', headers: charging });
    expect((await ask(`${url}${path('M-ALPHA', 'charge')}`, { headers })).body).toEqual(charged.body);
    for (const other of [path('M-ALPHA', 'order'), path('M-BRAVO', 'order%2F1')])
      expect((await ask(`${url}${other}`, { headers })).status).toBe(404);
    expect((await ask(`${url}/v1/transactions?merchant=M-ALPHA`, { headers })).status).toBe(422);
  });

  it('requires the token, and is off without one', async () => {
    const on = await openSandbox({ lookupToken: TOKEN });
    for (const shown of [{}, ALPHA, { authorization: TOKEN }])
      expect((await ask(`${on.url}${path('a', 'b')}`, { headers: shown })).status).toBe(401);
    const off = await openSandbox();
    expect((await ask(`${off.url}${path('a', 'b')}`, { headers })).json.error.code).toBe('not_found');
  });
});
