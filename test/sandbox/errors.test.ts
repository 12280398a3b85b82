import { describe, expect, it } from 'vitest';
import {
  ALPHA,
  type Answer,
  ask,
  openSandbox,
  post,
  RawConnection,
  rawWithdraw,
  WITHDRAW,
} from './support.ts';

function expectEnvelope(answer: Answer, status: number, code: string): void {
  expect({ status: answer.status, body: answer.json }).toEqual({
    status,
    body: {
      success: false,
      message: expect.any(String),
      error: { code, message: answer.json.message },
    },
  });
  expect(answer.headers['content-type']).toMatch(/^application\/json/);
}

describe('the envelope of errors', () => {
  it.each([undefined, 'Bearer sk_unknown', 'Bearer', 'Basic abc', 'Bearer sk_sandbox_alpha extra'])(
    'answers 401 to the Authorization %s',
    async (authorization) => {
      const { url, ledger } = await openSandbox();
      const headers = authorization === undefined ? {} : { authorization };
      const balance = await ask(`${url}/v2/get_balance`, { headers });
      expectEnvelope(balance, 401, 'unauthorized');
      expect(balance.headers['www-authenticate']).toBe('Bearer realm="sandbox"');
      expectEnvelope(await post(url, WITHDRAW, headers as Record<string, string>), 401, 'unauthorized');
      const charge = await ask(`${url}/v1/charges`, { method: 'POST', headers });
      expectEnvelope(charge, 401, 'unauthorized');
      expect(ledger.transactions()).toEqual([]);
    },
  );

  it.each([0, -1, 0.001, 1.005, 1e13, '100', null, true, undefined])(
    'refuses the amount %j',
    async (amount) => {
      const { url, ledger } = await openSandbox();
      expectEnvelope(await post(url, { ...WITHDRAW, amount }), 422, 'validation_failed');
      expectEnvelope(await post(url, { action: 'checkout', amount }), 422, 'validation_failed');
      expect(ledger.transactions()).toEqual([]);
    },
  );

  it('refuses an amount that overflows to infinity', async () => {
    const { url } = await openSandbox();
    const body = JSON.stringify(WITHDRAW).replace('100', '1e999');
    expectEnvelope(await post(url, body), 422, 'validation_failed');
  });

  it.each([
    { bank_code: 44 },
    { bank_code: '' },
    { bank_code: '04A' },
    { bank_code: undefined },
    { account_number: 123 },
    { account_number: '12 34' },
    { account_number: '1'.repeat(35) },
    { action: 'checkout', currency: 'naira' },
    { action: 'checkout', reference: '' },
  ])('refuses %j', async (change) => {
    const { url, ledger } = await openSandbox();
    expectEnvelope(await post(url, { ...WITHDRAW, ...change }), 422, 'validation_failed');
    expect(ledger.transactions()).toEqual([]);
  });

  it.each([{ action: 'refund' }, { action: undefined }, { action: ['withdraw'] }])(
    'refuses %j',
    async (change) => {
      const { url } = await openSandbox();
      expectEnvelope(await post(url, { ...WITHDRAW, ...change }), 422, 'unknown_action');
    },
  );

  it.each(['', '{', '[]', '"withdraw"', 'null'])('refuses the body %j', async (body) => {
    const { url } = await openSandbox();
    expectEnvelope(await post(url, body), 400, 'invalid_json');
  });

  it('answers 402 when the wallet holds too little', async () => {
    const { url, ledger } = await openSandbox({ balances: { 'M-ALPHA': 0 } });
    expectEnvelope(await post(url, WITHDRAW), 402, 'insufficient_funds');
    expect(ledger.payouts()).toBe(0);
  });

  it('answers 413 to a body over 1 MiB and executes nothing', async () => {
    const { url, ledger } = await openSandbox();
    const padded = JSON.stringify({ ...WITHDRAW, padding: 'x'.repeat(1_048_576) });
    expectEnvelope(await post(url, padded), 413, 'body_too_large');
    const charge = await ask(`${url}/v1/charges`, { method: 'POST', headers: ALPHA, body: padded });
    expectEnvelope(charge, 413, 'body_too_large');
    expect(ledger.transactions()).toEqual([]);
  });

  it('answers 404 and 405 elsewhere', async () => {
    const { url } = await openSandbox();
    expectEnvelope(await ask(`${url}/v1/other`, { headers: ALPHA }), 404, 'not_found');
    const wrong = await ask(`${url}/v1/index.php`, { headers: ALPHA });
    expectEnvelope(wrong, 405, 'method_not_allowed');
    expect(wrong.headers.allow).toBe('POST');
  });

  it('executes nothing for a request that breaks off in its body', async () => {
    const { port, url, ledger, requests } = await openSandbox();
    const connection = new RawConnection(port, rawWithdraw({ 'Idempotency-Key': 'cut' }, { cutBytes: 1 }));
    connection.socket.end();
    await connection.ended;
    expect((await post(url, WITHDRAW)).status).toBe(201);
    expect(ledger.payouts()).toBe(1);
    expect(requests.ofKey('cut')).toBe(1);
  });
});
