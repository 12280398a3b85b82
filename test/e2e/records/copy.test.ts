import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it } from 'vitest';
import type { Sandbox } from '../../../src/sandbox/create-sandbox.ts';
import { isReplay, send, withdraw } from '../../support/client.ts';
import { newFolder, run, runProcess } from '../../support/command.ts';
import type { ConfigInput, MoreConfig } from '../../support/config.ts';
import { configFile, configFor } from '../../support/config.ts';
import { startRedis } from '../../support/redis-server.ts';
import { gatewayForTest, openGateway, openSandbox, stackForTest } from '../../support/stack.ts';
import { onRedis, type StoreKind } from '../../support/stores.ts';
import { begin } from '../../support/tour.ts';
import { until } from '../../support/until.ts';
import { codeOf } from '../../support/wire.ts';

const MERCHANTS = 12;
const redis = await startRedis();

/** One key, and what its requests were answered. */
interface Payout {
  key: string;
  body?: Buffer | undefined;
  refusals: number;
  isInDoubt: boolean;
}

/**
 * Merchants who repeat each key until it is paid, and then once more. They try the gateways in turn: of those on the old store and
 * on the new one, only some are ready.
 */
class Load {
  readonly payouts: Payout[] = [];
  readonly gateways: { url: string }[];
  #isStopping = false;
  readonly #over: Promise<unknown>;

  constructor(gateways: { url: string }[]) {
    this.gateways = gateways;
    this.#over = Promise.all(Array.from({ length: MERCHANTS }, (_, at) => this.#merchant(at)));
  }

  async stop(): Promise<void> {
    this.#isStopping = true;
    await this.#over;
  }

  get accepted(): Payout[] {
    return this.payouts.filter(({ body }) => body !== undefined);
  }

  async #merchant(at: number): Promise<void> {
    for (let number = 0; !this.#isStopping; number++) {
      const payout: Payout = { key: randomUUID(), refusals: 0, isInDoubt: false };
      this.payouts.push(payout);
      // Every tenth execution has no answer, and every fifth is slow enough to run across the switch.
      const fault = number % 10 === 9 ? 'execute-then-reset' : `delay=${number % 5 === 4 ? 400 : 10 + at}`;
      for (const _ of ['first', 'replay'])
        while (!payout.isInDoubt && !(await this.#isPaid(payout, fault))) await sleep(10);
    }
  }

  /** Sends the payout once. */
  async #isPaid(payout: Payout, fault: string): Promise<boolean> {
    const { url } = this.gateways[payout.refusals % this.gateways.length] as { url: string };
    const answer = await withdraw(url, { key: payout.key, fault }).catch(() => undefined);
    if (answer?.status === 201) {
      payout.body ??= answer.body;
      expect(answer.body).toEqual(payout.body);
      return true;
    }
    if (answer && codeOf(answer) === 'outcome_unknown') payout.isInDoubt = true;
    else payout.refusals++;
    return false;
  }
}

function expectEachPaidOnce({ payouts, accepted }: Load, sandbox: Sandbox): void {
  expect(sandbox.ledger.duplicateKeys()).toEqual([]);
  for (const { key } of accepted) expect(sandbox.ledger.payouts({ key })).toBe(1);
  expect(sandbox.ledger.payouts()).toBe(payouts.length);
}

function storeOn(kind: StoreKind): MoreConfig {
  const sections = kind === 'redis' ? onRedis(redis) : {};
  return {
    ...sections,
    ...(sections.store && { store: { ...sections.store, prefix: randomUUID() } as never }),
  };
}

it('under load, all records move from sqlite to redis: no key is forgotten, none is paid twice', async () => {
  const sandbox = await openSandbox();
  const [oldConfig, newConfig] = [
    configFor(sandbox, storeOn('sqlite')),
    configFor(sandbox, storeOn('redis')),
  ];
  const files = ['--from', configFile(oldConfig), '--to', configFile(newConfig)];
  const olds = await Promise.all([openGateway(oldConfig), openGateway(oldConfig)]);
  const load = new Load([...olds]);
  await until(() => load.accepted.length > 10 * MERCHANTS);

  const ended = await runProcess(['records', 'copy', ...files]);
  expect(ended).toMatchObject({ code: 0, stderr: expect.stringMatching(/^closed .*\n(?:.*\n)*opened /) });
  const [, records] = /^records +(\d+)$/m.exec(ended.stdout) ?? [];
  expect(Number(records)).toBeGreaterThanOrEqual(load.accepted.length);
  const before = load.accepted.length;
  for (const { adminUrl } of olds) expect((await send(adminUrl, { path: '/readyz' })).status).toBe(503);
  const news = await Promise.all([gatewayForTest(newConfig), gatewayForTest(newConfig)]);
  // Merchants still reach the old ones at times.
  load.gateways.push(...news);
  await until(() => load.accepted.length > before + 5 * MERCHANTS);
  await Promise.all(olds.map((gateway) => gateway.shutdown()));
  await load.stop();
  expectEachPaidOnce(load, sandbox);

  // Every key is known on the other side.
  for (const [at, { key, body, isInDoubt }] of load.payouts.entries()) {
    const retry = await withdraw(news[at % 2]?.url ?? '', { key });
    if (isInDoubt) expect(retry.status).toBe(409);
    else expect([retry.status, isReplay(retry), retry.body]).toEqual([201, true, body]);
  }
  expectEachPaidOnce(load, sandbox);
  expect(await runProcess(['records', 'copy', ...files])).toMatchObject({
    code: 1,
    stderr: expect.stringContaining('the source was moved'),
  });
}, 120_000);

it('a copy from redis to sqlite that waits for a payout is killed, and repeated without waiting for it: its key is in doubt', async () => {
  const sandbox = await openSandbox();
  const more = {
    upstream: { responseTimeoutMs: 60_000 },
    ...{ idempotency: { completeRetryMs: 500 }, lock: { leaseMs: 2000 } },
  };
  const from = configFor(sandbox, { ...storeOn('redis'), ...more });
  const to = configFor(sandbox, { ...storeOn('sqlite'), ...more });
  const old = await openGateway(from);
  const copy = ['records', 'copy', '--from', configFile(from), '--to', configFile(to)];
  const key = randomUUID();
  const paying = withdraw(old.url, { key, fault: 'delay=60000' });
  await until(() => sandbox.requests.ofKey(key) === 1);
  const killed = begin(copy);
  await until(() => killed.output().includes('waiting for 1 requests: withdraw of'));
  expect(killed.output()).toContain(`key ${key}, on gateway `);
  await killed.end('SIGKILL');
  const closed = await withdraw(old.url, { key: randomUUID() });
  expect([closed.status, codeOf(closed)]).toEqual([503, 'store_unavailable']);

  expect(await run([...copy, '--although-alive'])).toMatchObject({
    code: 0,
    stdout: expect.stringMatching(/^requests that were not waited for +1$/m),
    stderr: expect.stringMatching(
      new RegExp(`^not waiting for withdraw of \\S+, key ${key}, on gateway `, 'm'),
    ),
  });
  sandbox.endDelays(key);
  expect((await paying).status).toBe(201);
  const stoppedAtMs = performance.now();
  await old.shutdown();
  expect(performance.now() - stoppedAtMs).toBeLessThan(10_000);
  const next = await gatewayForTest(to);
  await until(async () => codeOf(await withdraw(next.url, { key })) === 'outcome_unknown');
  expect([sandbox.requests.total(), sandbox.ledger.payouts({ key })]).toEqual([1, 1]);
});

it('a gateway that observes takes no part in a copy from redis to sqlite', async () => {
  const source = await stackForTest(storeOn('redis'));
  const to = configFor(source.sandbox, storeOn('sqlite'));
  const observing = (config: ConfigInput) => ({ ...config, idempotency: { mode: 'observe' as const } });
  const [old, next] = [configFile(source.config), configFile(to)];
  const [oldObserves, newObserves] = [configFile(observing(source.config)), configFile(observing(to))];
  const copy = (fromFile: string, toFile: string, ...more: string[]) =>
    run(['records', 'copy', '--from', fromFile, '--to', toFile, ...more]);
  for (const [files, option] of [
    [[oldObserves, next], '--from'],
    [[old, newObserves], '--to'],
  ] as const)
    expect(await copy(...files)).toMatchObject({
      code: 1,
      stdout: '',
      stderr: expect.stringContaining(`the configuration of ${option} has idempotency.mode: observe`),
    });
  const readiness = async ({ adminUrl }: { adminUrl: string }) =>
    (await send(adminUrl, { path: '/readyz' })).status;
  expect(await readiness(source)).toBe(200);

  // Its configuration was changed after the command has read it.
  const observes = await gatewayForTest(observing(source.config));
  expect(await readiness(observes)).toBe(200);
  expect(await copy(old, next)).toMatchObject({ code: 0 });
  expect(await readiness(observes)).toBe(503);
});

it('a copy that has not ended is undone: the old store serves again, after a restart', async () => {
  const source = await stackForTest(storeOn('sqlite'));
  const to = configFor(source.sandbox, storeOn('redis'));
  const files = ['--from', configFile(source.config), '--to', configFile(to)];
  expect((await withdraw(source.url, { key: randomUUID() })).status).toBe(201);
  using database = new DatabaseSync(join((source.config.store as { path: string }).path, 'records.db'));
  database.exec("UPDATE records SET record = x'00'");
  expect(await run(['records', 'copy', ...files])).toMatchObject({
    code: 1,
    stderr: expect.stringMatching(/^oncegate: [0-9a-f]{48}: the record cannot be read: .*--undo/m),
  });
  expect(codeOf(await withdraw(source.url, { key: randomUUID() }))).toBe('store_unavailable');
  expect(await run(['records', 'copy', ...files, '--undo'])).toMatchObject({
    code: 0,
    stderr: 'opened the source again: restart its gateways. The destination stays closed\n',
  });
  expect(codeOf(await withdraw(source.url, { key: randomUUID() }))).toBe('store_unavailable');
  expect((await withdraw((await gatewayForTest(source.config)).url, { key: randomUUID() })).status).toBe(201);
  expect(await run(['records', 'copy', ...files, '--undo'])).toMatchObject({
    code: 1,
    stderr: expect.stringContaining('no copy has closed the source'),
  });
});

it('stores whose configurations note their identities in the same file are not copied: each would be refused for the other', async () => {
  const sandbox = await openSandbox();
  const identityFile = join(newFolder(), 'identity.json');
  const sharing = () => {
    const config = configFor(sandbox);
    return configFile({ ...config, store: { ...config.store, identityFile } });
  };
  const [from, to] = [sharing(), sharing()];
  expect(await run(['records', 'copy', '--from', from, '--to', to])).toMatchObject({
    code: 1,
    stderr: expect.stringContaining(`note the identity of their store in ${identityFile}`),
  });
});
