import { once } from 'node:events';
import { connect } from 'node:net';
import { text } from 'node:stream/consumers';
import { describe, expect, it } from 'vitest';
import { createSandbox } from '../../src/sandbox/sandbox.ts';
import { ALPHA, ask, ledgerFile, openSandbox, post, spawnMain, spawnSandbox, WITHDRAW } from './support.ts';

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
    killed.child.kill('SIGKILL');
    expect(await killed.exited).toBe('SIGKILL');
    await Promise.all(merchants);

    const { url } = await spawnSandbox('--db', file);
    const { payouts, balanced, transactions } = (await ask(`${url}/_sandbox/ledger?limit=1000000`)).json;
    const kept = transactions.map(({ id }: { id: string }) => id);
    expect(acknowledged.length).toBeGreaterThan(0);
    expect(kept).toEqual(expect.arrayContaining(acknowledged));
    expect(balanced).toBe(true);
    const { balance } = (await ask(`${url}/v2/get_balance`, { headers: ALPHA })).json.data;
    expect(balance).toBe(1_000_000 - 100 * payouts);
  });

  it.each(['SIGTERM', 'SIGINT'] as const)(
    'exits with 0 on %s, also while a request hangs',
    async (signal) => {
      const { url, child, exited } = await spawnSandbox('--db', ledgerFile());
      const hanging = post(url, WITHDRAW, { ...ALPHA, 'x-sandbox-fault': 'execute-then-hang' });
      const failed = expect(hanging).rejects.toThrow();
      while ((await ask(`${url}/_sandbox/ledger`)).json.payouts === 0);
      child.kill(signal);
      expect(await exited).toBe(0);
      await failed;
    },
  );

  it('prints its help', async () => {
    const { child, exited } = spawnMain('--help');
    const [stdout, code] = await Promise.all([text(child.stdout), exited]);
    expect(code).toBe(0);
    for (const word of ['--port', '--db', 'sk_sandbox_alpha_2', '/_sandbox/ledger'])
      expect(stdout).toContain(word);
  });

  it.each([
    [['--bogus'], 2, /--bogus/],
    [['stray'], 2, /stray/],
    [['--port', 'high'], 2, /--port takes a whole number/],
    [['--port', '0', '--db', '/nowhere/at/all/ledger.db'], 1, /cannot open the ledger at \/nowhere/],
  ])('explains without a stack trace why %j is wrong', async (args, code, reason) => {
    const { child, exited } = spawnMain(...args);
    const [stderr, exitCode] = await Promise.all([text(child.stderr), exited]);
    expect(exitCode).toBe(code);
    expect(stderr).toMatch(reason);
    expect(stderr).not.toMatch(/\n\s+at /);
  });

  it('names a port that is in use', async () => {
    const { port } = await openSandbox();
    const { child, exited } = spawnMain('--port', String(port));
    const [stderr, exitCode] = await Promise.all([text(child.stderr), exited]);
    expect(exitCode).toBe(1);
    expect(stderr).toBe(`sandbox: cannot listen on 127.0.0.1:${port}: the port is in use\n`);
  });
});

describe('createSandbox', () => {
  it('rejects with an error of one line that has the code of the cause', async () => {
    const { port } = await openSandbox();
    await expect(createSandbox({ port })).rejects.toMatchObject({
      code: 'EADDRINUSE',
      message: expect.not.stringContaining('\n'),
    });
    const databasePath = '/nowhere/at/all/ledger.db';
    await expect(createSandbox({ port: 0, databasePath })).rejects.toMatchObject({
      code: 'ERR_SQLITE_ERROR',
      message: `sandbox: cannot open the ledger at ${databasePath}: unable to open database file`,
    });
  });

  it('closes every socket, and can be closed twice', async () => {
    const sandbox = await openSandbox();
    const idle = connect(sandbox.port, '127.0.0.1');
    await once(idle, 'connect');
    const ended = once(idle.resume(), 'close');
    await Promise.all([sandbox.close(), sandbox.close()]);
    await ended;
    await expect(ask(sandbox.url)).rejects.toMatchObject({ code: 'ECONNREFUSED' });
  });

  it('closes an idle connection after keepAliveTimeoutMs', async () => {
    const { port } = await openSandbox({ keepAliveTimeoutMs: 30 });
    const socket = connect(port, '127.0.0.1');
    socket.resume().write('GET /v3/echo HTTP/1.1\r\nHost: x\r\n\r\n');
    await once(socket, 'data');
    await once(socket, 'end');
    socket.destroy();
  });
});
