import { randomUUID } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it, onTestFinished } from 'vitest';
import { stringify } from 'yaml';
import type { Sandbox } from '../../../src/sandbox/sandbox.ts';
import { send, withdraw } from '../../support/client.ts';
import { newFolder, run, runProcess } from '../../support/command.ts';
import type { ConfigInput, MoreConfig } from '../../support/config.ts';
import { startRedis } from '../../support/redis-server.ts';
import { openGateway, openStack } from '../../support/stack.ts';
import { onRedis, type StoreKind } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { codeOf } from '../../support/wire.ts';
import { configFor, isReplay, openSandbox } from '../process/gateways.ts';

const MERCHANTS = 12;
const redis = await startRedis();

/** One key, what its requests were answered, and when. */
interface Payout {
  key: string;
  body?: Buffer | undefined;
  /** On the monotonic clock. */
  refusedAtMs: number[];
  acceptedAtMs?: number;
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
    return this.payouts.filter(({ acceptedAtMs }) => acceptedAtMs !== undefined);
  }

  async #merchant(at: number): Promise<void> {
    for (let number = 0; !this.#isStopping; number++) {
      const payout: Payout = { key: randomUUID(), refusedAtMs: [], isInDoubt: false };
      this.payouts.push(payout);
      // Every tenth execution has no answer, and every fifth is slow enough to run across the switch.
      const fault = number % 10 === 9 ? 'execute-then-reset' : `delay=${number % 5 === 4 ? 400 : 10 + at}`;
      for (const _ of ['first', 'replay'])
        while (!payout.isInDoubt && !(await this.#isPaid(payout, fault))) await sleep(10);
    }
  }

  /** Sends the payout once. */
  async #isPaid(payout: Payout, fault: string): Promise<boolean> {
    const { url } = this.gateways[payout.refusedAtMs.length % this.gateways.length] as { url: string };
    const answer = await withdraw(url, { key: payout.key, fault }).catch(() => undefined);
    if (answer?.status === 201) {
      payout.acceptedAtMs ??= performance.now();
      payout.body ??= answer.body;
      expect(answer.body).toEqual(payout.body);
      return true;
    }
    if (answer && codeOf(answer) === 'outcome_unknown') payout.isInDoubt = true;
    else payout.refusedAtMs.push(performance.now());
    return false;
  }
}

/** The longest time in which no merchant was paid that begins with a refusal. */
function pauseOf({ payouts, accepted }: Load): number {
  const acceptances = accepted.map(({ acceptedAtMs }) => acceptedAtMs as number);
  const refusals = payouts.flatMap(({ refusedAtMs }) => refusedAtMs);
  const pauses = refusals.map((fromMs) => Math.min(...acceptances.filter((atMs) => atMs > fromMs)) - fromMs);
  return Math.max(0, ...pauses.filter(Number.isFinite));
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

function written(config: object): string {
  const file = join(newFolder(), 'gateway.yaml');
  writeFileSync(file, stringify(config));
  return file;
}

it.each([
  ['sqlite', 'redis'],
  ['redis', 'sqlite'],
] as const)(
  'under load, all records move from %s to %s: no key is forgotten, none is paid twice',
  async (from, to) => {
    const sandbox = await openSandbox();
    const [oldConfig, newConfig] = [configFor(sandbox, storeOn(from)), configFor(sandbox, storeOn(to))];
    const files = ['--from', written(oldConfig), '--to', written(newConfig)];
    const olds = await Promise.all([openGateway(oldConfig), openGateway(oldConfig)]);
    const load = new Load([...olds]);
    await until(() => load.accepted.length > 10 * MERCHANTS);

    expect(await runProcess(['records', 'copy', ...files, '--prepare'])).toMatchObject({
      code: 0,
      stderr: '',
    });
    const news = await Promise.all([openGateway(newConfig), openGateway(newConfig)]);
    onTestFinished(async () => void (await Promise.all(news.map((gateway) => gateway.shutdown()))));
    for (const { adminUrl } of news) expect((await send(adminUrl, { path: '/readyz' })).status).toBe(503);
    load.gateways.push(...news);
    const before = load.accepted.length;
    const ended = await runProcess(['records', 'copy', ...files]);
    expect(ended).toMatchObject({ code: 0, stderr: '' });
    expect(load.accepted.length).toBeGreaterThan(before);
    const [, reported] = /paused for (\d+) ms/.exec(ended.stdout) ?? [];
    expect(Number(reported)).toBeLessThan(1000);

    const switched = load.accepted.length;
    await until(() => load.accepted.length > switched + 5 * MERCHANTS);
    await Promise.all(olds.map((gateway) => gateway.shutdown()));
    await load.stop();
    expect(pauseOf(load)).toBeLessThan(1000);
    expectEachPaidOnce(load, sandbox);

    // Every key is known on the other side.
    for (const [at, { key, body, isInDoubt }] of load.payouts.entries()) {
      const retry = await withdraw(news[at % 2]?.url ?? '', { key });
      if (isInDoubt) expect(retry.status).toBe(409);
      else expect([retry.status, isReplay(retry), retry.body]).toEqual([201, true, body]);
    }
    expectEachPaidOnce(load, sandbox);
  },
  120_000,
);

it('a gateway that observes takes no part in a copy from redis to sqlite', async () => {
  const source = await openStack(storeOn('redis'));
  onTestFinished(() => source.close());
  const to = configFor(source.sandbox, storeOn('sqlite'));
  const observing = (config: ConfigInput) => ({ ...config, idempotency: { mode: 'observe' as const } });
  const [old, next] = [written(source.config), written(to)];
  const [oldObserves, newObserves] = [written(observing(source.config)), written(observing(to))];
  const copy = (fromFile: string, toFile: string, ...more: string[]) =>
    run(['records', 'copy', '--from', fromFile, '--to', toFile, ...more]);
  for (const more of [[], ['--prepare']]) {
    for (const [files, option] of [
      [[oldObserves, next], '--from'],
      [[old, newObserves], '--to'],
    ] as const)
      expect(await copy(...files, ...more)).toMatchObject({
        code: 1,
        stdout: '',
        stderr: expect.stringContaining(`the configuration of ${option} has idempotency.mode: observe`),
      });
  }
  const readiness = async ({ adminUrl }: { adminUrl: string }) =>
    (await send(adminUrl, { path: '/readyz' })).status;
  expect(await readiness(source)).toBe(200);

  expect(await copy(old, next, '--prepare')).toMatchObject({ code: 0 });
  // Its configuration was changed after the command has read it.
  const observes = await openGateway(observing(to));
  onTestFinished(() => observes.shutdown());
  expect(await readiness(observes)).toBe(503);
  expect(await copy(oldObserves, newObserves, '--undo')).toMatchObject({ code: 0 });
  expect(await readiness(observes)).toBe(200);
});

it('stores whose configurations note their mark in the same file are not copied: each would be refused for the other', async () => {
  const sandbox = await openSandbox();
  const identityFile = join(newFolder(), 'mark.json');
  const sharing = () => {
    const config = configFor(sandbox);
    return written({ ...config, store: { ...config.store, identityFile } });
  };
  const [from, to] = [sharing(), sharing()];
  expect(await run(['records', 'copy', '--from', from, '--to', to, '--prepare'])).toMatchObject({
    code: 1,
    stderr: expect.stringContaining(`note the mark of their store in ${identityFile}`),
  });
});
