import { DatabaseSync } from 'node:sqlite';
import { describe, expect, it } from 'vitest';
import { createSandbox } from '../../src/sandbox/sandbox.ts';
import { ALPHA, ask, BRAVO, ledgerFile, openSandbox, post, spawnSandbox, WITHDRAW } from './support.ts';

describe('the ledger', () => {
  it('debits the wallet for a withdraw, exact to the cent', async () => {
    const { url, ledger } = await openSandbox({ balances: { 'M-ALPHA': 1000.3 } });
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
    expect(balance.json.data.balance).toBe(1000.2);
    expect(ledger.balance('M-BRAVO')).toBe(1_000_000);
    expect(ledger.balanced()).toBe(true);
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

  it('does not count the same key of two merchants as a duplicate', async () => {
    const { url, ledger } = await openSandbox();
    for (const merchant of [ALPHA, BRAVO])
      await post(url, WITHDRAW, { ...merchant, 'idempotency-key': '"k"' });
    expect(ledger.payouts({ key: '"k"' })).toBe(2);
    expect(ledger.payouts({ key: '"k"', merchant: 'M-BRAVO' })).toBe(1);
    expect(ledger.duplicateKeys()).toEqual([]);
  });

  it('counts a checkout session and leaves the wallet as it is', async () => {
    const { url, ledger } = await openSandbox();
    const answer = await post(url, {
      action: 'checkout',
      amount: 25.5,
      currency: 'USD',
      reference: 'order 7',
    });
    const { session_id, url: page } = answer.json.data;
    expect(session_id).toMatch(/^cs_[0-9a-f]{32}$/);
    expect(page).toContain(session_id);
    expect(ledger.checkouts()).toBe(1);
    expect(ledger.payouts()).toBe(0);
    expect(ledger.balance('M-ALPHA')).toBe(1_000_000);
    expect(ledger.transactions()[0]).toMatchObject({ amount: 25.5, currency: 'USD', reference: 'order 7' });
    expect(ledger.balanced()).toBe(true);
  });

  it.each([
    ['POST', '/v1/charges', 'application/x-www-form-urlencoded', 'amount=1000&currency=usd'],
    ['POST', '/v2/payments?dry', 'application/json', '{"amount_money":{"amount":1000}}'],
    ['PUT', '/any/where', 'application/octet-stream', '\u0000\u0001'],
    ['DELETE', '/', 'text/plain', ''],
  ])('books %s %s as a charge of one unit, whatever the body', async (method, path, type, body) => {
    const { url, ledger } = await openSandbox();
    const headers = { ...ALPHA, 'content-type': type, 'idempotency-key': 'one-key' };
    const answers = [
      await ask(url + path, { method, headers, body }),
      await ask(url + path, { method, headers, body }),
    ];
    const data = { action: 'charge', amount: 1, currency: 'NGN', status: 'accepted' };
    for (const answer of answers) {
      expect(answer.status).toBe(201);
      expect(answer.json).toMatchObject({ success: true, data });
      expect(answer.json.data.transaction_id).toMatch(/^ch_[0-9a-f]{32}$/);
    }
    expect(ledger.charges({ key: 'one-key' })).toBe(2);
    expect(ledger.payouts()).toBe(0);
    expect(ledger.balance('M-ALPHA')).toBe(1_000_002);
    expect(ledger.duplicateKeys()).toEqual([{ merchant: 'M-ALPHA', key: 'one-key', executions: 2 }]);
    expect(ledger.balanced()).toBe(true);
  });

  it('never overdraws a wallet with 50 concurrent withdraws', async () => {
    const { url, ledger } = await openSandbox({ balances: { 'M-ALPHA': 1234.56 } });
    const answers = await Promise.all(Array.from({ length: 50 }, () => post(url, WITHDRAW)));
    const statuses = answers.map(({ status }) => status).sort();
    expect(statuses).toEqual([...Array(12).fill(201), ...Array(38).fill(402)]);
    expect(ledger.balance('M-ALPHA')).toBe(34.56);
    expect(ledger.payouts()).toBe(12);
    expect(ledger.balanced()).toBe(true);
  });

  it('never overdraws a wallet with two processes that create one file at the same time', async () => {
    const file = ledgerFile();
    const processes = await Promise.all([spawnSandbox('--db', file), spawnSandbox('--db', file)]);
    const order = { ...WITHDRAW, amount: 33_333.33 };
    const answers = await Promise.all(
      Array.from({ length: 40 }, () => processes.map(({ url }) => post(url, order))).flat(),
    );
    expect(answers.filter(({ status }) => status === 201)).toHaveLength(30);
    expect(answers.filter(({ status }) => status === 402)).toHaveLength(50);
    for (const { url } of processes) {
      const { payouts, balanced } = (await ask(`${url}/_sandbox/ledger`)).json;
      expect({ payouts, balanced }).toEqual({ payouts: 30, balanced: true });
      expect((await ask(`${url}/v2/get_balance`, { headers: ALPHA })).json.data.balance).toBe(0.1);
    }
  });
});

describe('the file of the ledger', () => {
  it('has two entries for every transaction, which sum to zero', async () => {
    const databasePath = ledgerFile();
    const { url } = await openSandbox({ databasePath });
    await post(url, WITHDRAW);
    await post(url, { action: 'checkout', amount: 5 });
    const database = new DatabaseSync(databasePath);
    const sums = database
      .prepare('SELECT count(*) AS n, sum(amount_minor) AS sum FROM entries GROUP BY transaction_sequence')
      .all();
    database.close();
    expect(sums.map(({ n, sum }) => [n, sum])).toEqual(Array(5).fill([2, 0]));
  });

  it('rejects statements that would break the rules of the ledger', async () => {
    const databasePath = ledgerFile();
    await openSandbox({ databasePath });
    const database = new DatabaseSync(databasePath);
    const cases: [sql: string, reason: RegExp][] = [
      ["UPDATE accounts SET balance_minor = -1 WHERE kind = 'wallet'", /CHECK constraint failed/],
      ['UPDATE entries SET amount_minor = 1', /append-only/],
      ['DELETE FROM entries', /append-only/],
      ['UPDATE transactions SET amount_minor = 1', /append-only/],
      ['DELETE FROM transactions', /append-only|FOREIGN KEY/],
    ];
    for (const [sql, reason] of cases) expect(() => database.exec(sql), sql).toThrow(reason);
    database.close();
  });

  it('with a manipulated balance is reported as not balanced', async () => {
    const databasePath = ledgerFile();
    const { ledger } = await openSandbox({ databasePath });
    expect(ledger.balanced()).toBe(true);
    const database = new DatabaseSync(databasePath);
    database.exec("UPDATE accounts SET balance_minor = balance_minor + 1 WHERE kind = 'wallet'");
    database.close();
    expect(ledger.balanced()).toBe(false);
  });

  it('keeps its balances when it is opened again, and credits opening balances only once', async () => {
    const databasePath = ledgerFile();
    const first = await openSandbox({ databasePath, balances: { 'M-ALPHA': 150 } });
    await post(first.url, WITHDRAW);
    await first.close();
    const second = await openSandbox({ databasePath });
    expect(second.ledger.balance('M-ALPHA')).toBe(50);
    expect(second.ledger.payouts()).toBe(1);
  });

  it('of another version is refused', async () => {
    const databasePath = ledgerFile();
    const database = new DatabaseSync(databasePath);
    database.exec('PRAGMA user_version = 99');
    database.close();
    await expect(createSandbox({ port: 0, databasePath })).rejects.toThrow(/version 99/);
  });
});

it('opening balances of unknown merchants and invalid ones are refused', async () => {
  for (const balances of [{ 'M-UNKNOWN': 1 }, { 'M-ALPHA': -1 }, { 'M-ALPHA': 0.001 }])
    await expect(createSandbox({ port: 0, balances }), JSON.stringify(balances)).rejects.toThrow(
      /^sandbox: .*M-(UNKNOWN|ALPHA)/,
    );
});
