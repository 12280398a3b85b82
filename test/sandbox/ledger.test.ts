import { DatabaseSync } from 'node:sqlite';
import { describe, expect, it } from 'vitest';
import { createSandbox } from '../../src/sandbox/create-sandbox.ts';
import { ALPHA, ask, BRAVO, ledgerFile, openSandbox, post, WITHDRAW } from './support.ts';

describe('the ledger', () => {
  it('books a withdraw, exact to the cent', async () => {
    const { url, ledger } = await openSandbox();
    const answer = await post(url, { ...WITHDRAW, amount: 0.1 });
    expect(answer.status).toBe(201);
    expect(answer.json).toEqual({
      success: true,
      data: {
        transaction_id: expect.stringMatching(/^wd_[0-9a-f]{32}$/),
        action: 'withdraw',
        amount: 0.1,
        currency: 'NGN',
        bank_code: '044',
        account_number: '0123456789',
        status: 'accepted',
        created_at: expect.stringMatching(/^\d{4}-\d\d-\d\dT/),
      },
    });
    const balance = await ask(`${url}/v2/get_balance`, { headers: ALPHA });
    expect(balance.json.data.balance).toBe(999_999.9);
    expect(ledger.balance('M-BRAVO')).toBe(1_000_000);
  });

  it('books every request as a new transaction, also with the same key', async () => {
    const { url, ledger } = await openSandbox();
    const headers = { ...ALPHA, 'x-service-idempotency': 'one-key', 'x-request-id': 'r-1' };
    const first = await post(url, WITHDRAW, headers);
    const second = await post(url, WITHDRAW, headers);
    expect(second.json.data.transaction_id).not.toBe(first.json.data.transaction_id);
    expect(ledger.payouts({ key: 'one-key' })).toBe(2);
    expect(ledger.duplicateKeys()).toEqual([{ merchant: 'M-ALPHA', key: 'one-key', executions: 2 }]);
    expect(ledger.transactions()[0]).toMatchObject({ idempotency_key: 'one-key', request_id: 'r-1' });
  });

  it('counts both secret keys of a merchant as one merchant, and no key of two merchants as a duplicate', async () => {
    const { url, ledger } = await openSandbox();
    for (const secret of ['bearer sk_sandbox_alpha', BRAVO.authorization])
      await post(url, WITHDRAW, { authorization: secret, 'idempotency-key': '"k"' });
    await post(url, WITHDRAW, { authorization: 'Bearer sk_sandbox_alpha_2' });
    expect(ledger.payouts({ key: '"k"' })).toBe(2);
    expect(ledger.payouts({ key: '"k"', merchant: 'M-BRAVO' })).toBe(1);
    expect(ledger.payouts({ merchant: 'M-ALPHA' })).toBe(2);
    expect(ledger.duplicateKeys()).toEqual([]);
  });

  it('counts a checkout session and leaves the wallet as it is', async () => {
    const { url, ledger } = await openSandbox();
    const order = { action: 'checkout', amount: 25.5, currency: 'USD', reference: 'order 7' };
    const { session_id, url: page, ...shown } = (await post(url, order)).json.data;
    expect(session_id).toMatch(/^cs_[0-9a-f]{32}$/);
    expect(page).toContain(session_id);
    expect(shown).toMatchObject(order);
    expect([ledger.checkouts(), ledger.payouts()]).toEqual([1, 0]);
    expect(ledger.balance('M-ALPHA')).toBe(1_000_000);
  });

  it.each([
    ['POST', '/v1/charges', 'application/x-www-form-urlencoded', 'amount=1000&currency=usd'],
    ['PUT', '/any/where', 'application/octet-stream', '\u0000\u0001'],
    ['DELETE', '/', 'text/plain', ''],
  ])('books %s %s as a charge of one unit, whatever the body', async (method, path, type, body) => {
    const { url, ledger } = await openSandbox();
    const headers = { ...ALPHA, 'content-type': type, 'idempotency-key': 'one-key' };
    const data = { action: 'charge', amount: 1, currency: 'NGN', status: 'accepted' };
    for (const _ of ['first', 'second']) {
      const answer = await ask(url + path, { method, headers, body });
      expect(answer.status).toBe(201);
      expect(answer.json).toMatchObject({ success: true, data });
    }
    expect([ledger.charges({ key: 'one-key' }), ledger.payouts()]).toEqual([2, 0]);
    expect(ledger.balance('M-ALPHA')).toBe(1_000_002);
    expect(ledger.duplicateKeys()).toEqual([{ merchant: 'M-ALPHA', key: 'one-key', executions: 2 }]);
  });

  it('never overdraws a wallet with concurrent withdraws: 402', async () => {
    const { url, ledger } = await openSandbox();
    const order = { ...WITHDRAW, amount: 300_000 };
    const answers = await Promise.all(Array.from({ length: 8 }, () => post(url, order)));
    const statuses = answers.map(({ status }) => status).sort();
    expect(statuses).toEqual([...Array(3).fill(201), ...Array(5).fill(402)]);
    expect([ledger.balance('M-ALPHA'), ledger.payouts()]).toEqual([100_000, 3]);
  });

  it('refuses a file of another version', async () => {
    const databasePath = ledgerFile();
    const database = new DatabaseSync(databasePath);
    database.exec('PRAGMA user_version = 99');
    database.close();
    await expect(createSandbox({ port: 0, databasePath })).rejects.toThrow(/version 99/);
  });
});

describe('the endpoints under /_sandbox/', () => {
  it('show the ledger with its filters', async () => {
    const { url } = await openSandbox();
    await post(url, WITHDRAW, { ...ALPHA, 'x-service-idempotency': 'a' });
    await post(url, WITHDRAW, { ...BRAVO, 'x-service-idempotency': 'a' });
    await post(url, { action: 'checkout', amount: 1 }, { ...BRAVO, 'x-service-idempotency': 'b' });
    await ask(`${url}/v1/charges`, { method: 'POST', headers: { ...ALPHA, 'x-service-idempotency': 'c' } });
    const ledger = async (query: string) => (await ask(`${url}/_sandbox/ledger${query}`)).json;
    const all = await ledger('');
    expect(all).toMatchObject({ payouts: 2, checkouts: 1, charges: 1, duplicateKeys: [], notListed: 0 });
    expect(all.transactions).toHaveLength(4);
    expect(all.transactions[0]).toMatchObject({ merchant: 'M-ALPHA', amount: 100, idempotency_key: 'a' });
    expect(await ledger('?merchant=M-BRAVO')).toMatchObject({ payouts: 1, checkouts: 1 });
    const bravoA = await ledger('?merchant=M-BRAVO&key=a');
    expect(bravoA).toMatchObject({ payouts: 1, checkouts: 0, transactions: [{ merchant: 'M-BRAVO' }] });
    const newest = { payouts: 2, notListed: 3, transactions: [{ kind: 'charge' }] };
    expect(await ledger('?limit=1')).toMatchObject(newest);
    expect((await ask(`${url}/_sandbox/nothing`)).status).toBe(404);
    expect((await ask(`${url}/_sandbox/ledger`, { method: 'DELETE' })).status).toBe(404);
  });
});

it('requests are counted by path and by key, executed or not, except those to /_sandbox/', async () => {
  const { url, requests } = await openSandbox();
  await post(url, '{', { ...ALPHA, 'idempotency-key': '__proto__' });
  await post(url, WITHDRAW, { 'x-service-idempotency': 'k' });
  await ask(`${url}/v2/get_balance?x=1`);
  await ask(`${url}/_sandbox/ledger`);
  expect([requests.total(), requests.ofPath('POST /v1/index.php')]).toEqual([3, 2]);
  expect(['k', '__proto__', 'never sent'].map(requests.ofKey)).toEqual([1, 1, 0]);
});
