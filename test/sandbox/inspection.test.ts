import { describe, expect, it } from 'vitest';
import { ALPHA, ask, BRAVO, openSandbox, post, WITHDRAW } from './support.ts';

describe('the endpoints under /_sandbox/', () => {
  it('show the ledger with its filters, account numbers masked', async () => {
    const { url } = await openSandbox();
    await post(url, WITHDRAW, { ...ALPHA, 'x-service-idempotency': 'a' });
    await post(url, WITHDRAW, { ...BRAVO, 'x-service-idempotency': 'a' });
    await post(url, { action: 'checkout', amount: 1 }, { ...BRAVO, 'x-service-idempotency': 'b' });
    await ask(`${url}/v1/charges`, { method: 'POST', headers: { ...ALPHA, 'x-service-idempotency': 'c' } });

    const all = (await ask(`${url}/_sandbox/ledger`)).json;
    expect(all).toMatchObject({ payouts: 2, checkouts: 1, charges: 1, balanced: true, duplicateKeys: [] });
    expect(all.transactions).toHaveLength(4);
    expect(all.transactions[0]).toMatchObject({
      merchant: 'M-ALPHA',
      account_number: '******6789',
      amount: 100,
    });

    const bravo = (await ask(`${url}/_sandbox/ledger?merchant=M-BRAVO`)).json;
    expect(bravo).toMatchObject({ payouts: 1, checkouts: 1 });
    const bravoA = (await ask(`${url}/_sandbox/ledger?merchant=M-BRAVO&key=a`)).json;
    expect(bravoA).toMatchObject({ payouts: 1, checkouts: 0, transactions: [{ merchant: 'M-BRAVO' }] });
    const newest = (await ask(`${url}/_sandbox/ledger?limit=1`)).json;
    expect(newest).toMatchObject({ payouts: 2, checkouts: 1, transactions: [{ kind: 'charge' }] });
  });

  it('count requests by path and by key, executed or not, except those to themselves', async () => {
    const { url, requests } = await openSandbox();
    await post(url, '{', { ...ALPHA, 'idempotency-key': '__proto__' });
    await post(url, WITHDRAW, { 'x-service-idempotency': 'k' });
    await ask(`${url}/v2/get_balance?x=1`);
    await ask(`${url}/_sandbox/ledger`);
    const counted = (await ask(`${url}/_sandbox/requests`)).body.toString();
    expect(counted).toBe(
      '{"total":3,"byPath":{"POST /v1/index.php":2,"GET /v2/get_balance":1},"byKey":{"__proto__":1,"k":1}}',
    );
    expect(requests.total()).toBe(3);
    expect(requests.ofPath('POST /v1/index.php')).toBe(2);
    expect(requests.ofKey('k')).toBe(1);
    expect(requests.ofKey('never sent')).toBe(0);
  });

  it('answer 405 to other methods than GET, and 404 to unknown paths', async () => {
    const { url } = await openSandbox();
    expect((await ask(`${url}/_sandbox/ledger`, { method: 'DELETE' })).status).toBe(405);
    expect((await ask(`${url}/_sandbox/nothing`)).status).toBe(404);
    expect((await ask(`${url}/_sandbox/last-upgrade`)).status).toBe(404);
  });

  it('count both secret keys of a merchant as one merchant', async () => {
    const { url, ledger } = await openSandbox();
    await post(url, WITHDRAW, { authorization: 'bearer sk_sandbox_alpha' });
    await post(url, WITHDRAW, { authorization: 'Bearer sk_sandbox_alpha_2' });
    expect(ledger.payouts({ merchant: 'M-ALPHA' })).toBe(2);
  });
});

describe('the log of the sandbox', () => {
  it('has one entry for each request that has ended, without secret keys', async () => {
    const entries: unknown[] = [];
    const { url, close } = await openSandbox({ log: (entry) => entries.push(entry) });
    await post(url, WITHDRAW, { ...ALPHA, 'x-sandbox-fault': '500-after' });
    await post(url, WITHDRAW, { ...ALPHA, 'x-sandbox-fault': 'refuse' }).catch(() => undefined);
    await close();
    expect(entries).toEqual([
      {
        method: 'POST',
        path: '/v1/index.php',
        status: 500,
        faults: '500-after',
        durationMs: expect.any(Number),
      },
      {
        method: 'POST',
        path: '/v1/index.php',
        status: null,
        faults: 'refuse',
        durationMs: expect.any(Number),
      },
    ]);
    expect(JSON.stringify(entries)).not.toContain('sk_sandbox');
  });
});
