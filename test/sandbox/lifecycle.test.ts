import { describe, expect, it } from 'vitest';
import { runProcess } from '../support/command.ts';
import { ALPHA, ask, ledgerFile, post, spawnSandbox, WITHDRAW } from './support.ts';

const NOWHERE = '/nowhere/at/all/ledger.db';

describe('the sandbox command', () => {
  it('keeps every payout that it acknowledged before it was killed under load', {
    timeout: 15_000,
  }, async () => {
    const file = ledgerFile();
    const killed = await spawnSandbox('--db', file);
    const acknowledged: string[] = [];
    const merchant = async (): Promise<void> => {
      for (;;) acknowledged.push((await post(killed.url, WITHDRAW)).json.data.transaction_id);
    };
    const merchants = Array.from({ length: 8 }, () => merchant().catch(() => undefined));
    for (let round = 0; round < 20; round += 1) await post(killed.url, WITHDRAW);
    expect(await killed.end('SIGKILL')).toEqual([null, 'SIGKILL']);
    await Promise.all(merchants);

    const { url } = await spawnSandbox('--db', file);
    const { payouts, transactions } = (await ask(`${url}/_sandbox/ledger?limit=1000000`)).json;
    expect(acknowledged.length).toBeGreaterThan(0);
    expect(transactions.map(({ id }) => id)).toEqual(expect.arrayContaining(acknowledged));
    const { balance } = (await ask(`${url}/v2/get_balance`, { headers: ALPHA })).json.data;
    expect(balance).toBe(1_000_000 - 100 * payouts);
  });

  it('exits with 0 on a signal, also while a request hangs', async () => {
    const { url, end } = await spawnSandbox('--db', ledgerFile());
    const hanging = post(url, WITHDRAW, { ...ALPHA, 'x-sandbox-fault': 'execute-then-hang' });
    const failed = expect(hanging).rejects.toThrow();
    while ((await ask(`${url}/_sandbox/ledger`)).json.payouts === 0);
    expect(await end('SIGTERM')).toEqual([0, null]);
    await failed;
  });

  it.each([
    [['--bogus'], 64, /--bogus/],
    [['--port', 'high'], 64, /"high" is not a port/],
    [['--port', '0', '--lookup'], 64, /SANDBOX_LOOKUP_TOKEN/],
    [['--port', '0', '--db', NOWHERE], 1, /cannot open the ledger at \/nowhere/],
  ])('explains without a stack trace why %j is wrong', async (args, code, reason) => {
    const ended = await runProcess(['sandbox', ...args]);
    expect(ended.code).toBe(code);
    expect(ended.stderr).toMatch(reason);
    expect(ended.stderr).not.toMatch(/\n\s+at /);
  });
});
