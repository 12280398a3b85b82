import { describe, expect, it } from 'vitest';
import { ALPHA, type Answer, ask, openSandbox, post, rawWithdraw, WITHDRAW } from './support.ts';

/** @param input named in the failure */
function expectError(answer: Answer, status: number, code: string, input?: unknown): void {
  expect({ input, status: answer.status, body: answer.json }).toEqual({
    input,
    status,
    body: {
      success: false,
      message: expect.any(String),
      error: { code, message: answer.json.message },
    },
  });
  expect(answer.headers['content-type']).toMatch(/^application\/json/);
}

describe('the sandbox', () => {
  it('answers 401 without a valid secret key', async () => {
    const { url, ledger } = await openSandbox();
    for (const authorization of [
      undefined,
      'Bearer sk_unknown',
      'Bearer',
      'Basic abc',
      'Bearer sk_sandbox_alpha extra',
    ]) {
      const headers: Record<string, string> = authorization === undefined ? {} : { authorization };
      const balance = await ask(`${url}/v2/get_balance`, { headers });
      expectError(balance, 401, 'unauthorized', authorization);
      expect(balance.headers['www-authenticate']).toBe('Bearer realm="sandbox"');
      expectError(await post(url, WITHDRAW, headers), 401, 'unauthorized', authorization);
      const charge = await ask(`${url}/v1/charges`, { method: 'POST', headers });
      expectError(charge, 401, 'unauthorized', authorization);
    }
    expect(ledger.transactions()).toEqual([]);
  });

  it('refuses amounts that are not positive numbers with at most two decimals, and other invalid members', async () => {
    const { url, ledger } = await openSandbox();
    const amounts = [0, -1, 0.001, 1.005, 1e13, '100', null, true, undefined];
    for (const change of [
      ...amounts.flatMap((amount) => [{ amount }, { action: 'checkout', amount }]),
      ...[44, '', '04A', undefined].map((bank_code) => ({ bank_code })),
      ...[123, '12 34', '1'.repeat(35)].map((account_number) => ({ account_number })),
      { action: 'checkout', currency: 'naira' },
      { action: 'checkout', reference: '' },
    ])
      expectError(await post(url, { ...WITHDRAW, ...change }), 422, 'validation_failed', change);
    // JSON.parse reads it as Infinity.
    const overflowing = JSON.stringify(WITHDRAW).replace('100', '1e999');
    expectError(await post(url, overflowing), 422, 'validation_failed');
    expect(ledger.transactions()).toEqual([]);
  });

  it('refuses unknown actions, and bodies that are no JSON objects', async () => {
    const { url } = await openSandbox();
    for (const action of ['refund', undefined, ['withdraw']])
      expectError(await post(url, { ...WITHDRAW, action }), 422, 'unknown_action', action);
    for (const body of ['', '{', '[]', '"withdraw"', 'null'])
      expectError(await post(url, body), 400, 'invalid_json', body);
  });

  it('answers 413 to a body over 1 MiB and executes nothing', async () => {
    const { url, ledger } = await openSandbox();
    const padded = JSON.stringify({ ...WITHDRAW, padding: 'x'.repeat(1_048_576) });
    expectError(await post(url, padded), 413, 'body_too_large');
    const charge = await ask(`${url}/v1/charges`, { method: 'POST', headers: ALPHA, body: padded });
    expectError(charge, 413, 'body_too_large');
    expect(ledger.transactions()).toEqual([]);
  });

  it('answers 404 to unknown paths, and to methods that a path does not have', async () => {
    const { url, ledger } = await openSandbox();
    expectError(await ask(`${url}/v1/other`, { headers: ALPHA }), 404, 'not_found');
    expectError(await ask(`${url}/v1/index.php`, { headers: ALPHA }), 404, 'not_found');
    expectError(await ask(`${url}/v2/get_balance`, { method: 'POST', headers: ALPHA }), 404, 'not_found');
    expect(ledger.transactions()).toEqual([]);
  });

  it('executes nothing if the connection closes before the whole body has arrived', async () => {
    const sandbox = await openSandbox();
    const { url, ledger, requests } = sandbox;
    const wire = await rawWithdraw(sandbox, ['Idempotency-Key: cut'], -1);
    wire.socket.end();
    await wire.ended;
    expect((await post(url, WITHDRAW)).status).toBe(201);
    expect(ledger.payouts()).toBe(1);
    expect(requests.ofKey('cut')).toBe(1);
  });
});
