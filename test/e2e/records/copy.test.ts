import { randomUUID } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { stringify } from 'yaml';
import type { Sandbox } from '../../../src/sandbox/sandbox.ts';
import { send, withdraw } from '../../support/client.ts';
import { newFolder, run } from '../../support/command.ts';
import type { MoreConfig } from '../../support/config.ts';
import { startRedis } from '../../support/redis-server.ts';
import type { SpawnedGateway } from '../../support/spawn.ts';
import { onRedis, type StoreKind } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { configFor, isReplay, openSandbox, startGateway } from '../process/gateways.ts';

const MERCHANTS = 12;
const BALANCE_EVERY_MS = 20;
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

/** Merchants behind a balancer that follows /readyz. They repeat each key until it is paid, and then once more. */
class Load {
  readonly payouts: Payout[] = [];
  readonly #gateways: SpawnedGateway[];
  #ready: SpawnedGateway[] = [];
  #isStopping = false;
  #over: Promise<unknown> = Promise.resolve();

  constructor(gateways: SpawnedGateway[]) {
    this.#gateways = gateways;
  }

  add(...gateways: SpawnedGateway[]): void {
    this.#gateways.push(...gateways);
  }

  start(): void {
    const merchants = Array.from({ length: MERCHANTS }, (_, at) => this.#merchant(at));
    this.#over = Promise.all([this.#balance(), ...merchants]);
  }

  async stop(): Promise<void> {
    this.#isStopping = true;
    await this.#over;
  }

  /** Payouts that were accepted, by the gateway that merchants see. */
  get accepted(): Payout[] {
    return this.payouts.filter(({ acceptedAtMs }) => acceptedAtMs !== undefined);
  }

  async #balance(): Promise<void> {
    while (!this.#isStopping) {
      const answers = await Promise.all(
        this.#gateways.map(async (gateway) => {
          const answer = await send(gateway.adminUrl, { path: '/readyz' }).catch(() => undefined);
          return answer?.status === 200 ? gateway : undefined;
        }),
      );
      this.#ready = answers.filter((gateway) => gateway !== undefined);
      await sleep(BALANCE_EVERY_MS);
    }
  }

  async #merchant(at: number): Promise<void> {
    for (let number = 0; !this.#isStopping; number++) {
      const payout: Payout = { key: randomUUID(), refusedAtMs: [], isInDoubt: false };
      this.payouts.push(payout);
      // Every tenth execution has no answer, and every fifth is slow enough to run across the switch.
      const fault = number % 10 === 9 ? 'execute-then-reset' : `delay=${number % 5 === 4 ? 400 : 10 + at}`;
      while (!(await this.#isOver(payout, fault))) await sleep(10);
      if (payout.isInDoubt) continue;
      await until(() => this.#ready.length > 0);
      await this.#isOver(payout, fault);
    }
  }

  /** Sends the payout once. */
  async #isOver(payout: Payout, fault: string): Promise<boolean> {
    const gateway = this.#ready[payout.refusedAtMs.length % Math.max(1, this.#ready.length)];
    const answer =
      gateway && (await withdraw(gateway.url, { key: payout.key, fault }).catch(() => undefined));
    if (answer?.status === 201) {
      payout.acceptedAtMs ??= performance.now();
      payout.body ??= answer.body;
      expect(answer.body).toEqual(payout.body);
      return true;
    }
    if (answer?.json<{ error: { code: string } }>().error.code === 'outcome_unknown') {
      payout.isInDoubt = true;
      return true;
    }
    payout.refusedAtMs.push(performance.now());
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
    const olds = await Promise.all([startGateway(oldConfig), startGateway(oldConfig)]);
    const load = new Load([...olds]);
    load.start();
    await until(() => load.accepted.length > 10 * MERCHANTS);

    expect(await run(['records', 'copy', ...files, '--prepare'])).toMatchObject({ code: 0, stderr: '' });
    const news = await Promise.all([startGateway(newConfig), startGateway(newConfig)]);
    for (const { adminUrl } of news) expect((await send(adminUrl, { path: '/readyz' })).status).toBe(503);
    load.add(...news);
    const before = load.accepted.length;
    const ended = await run(['records', 'copy', ...files]);
    expect(ended).toMatchObject({ code: 0, stderr: '' });
    expect(load.accepted.length).toBeGreaterThan(before);
    const [, reported] = /paused for (\d+) ms/.exec(ended.stdout) ?? [];
    expect(Number(reported)).toBeLessThan(1000);

    const switched = load.accepted.length;
    await until(() => load.accepted.length > switched + 5 * MERCHANTS);
    expect(await Promise.all(olds.map((gateway) => gateway.end()))).toEqual([0, 0]);
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

it.each([
  ['sqlite', 'redis'],
  ['redis', 'sqlite'],
] as const)('a gateway that observes takes no part in a copy from %s to %s', async (from, to) => {
  const sandbox = await openSandbox();
  const configs = [configFor(sandbox, storeOn(from)), configFor(sandbox, storeOn(to))] as const;
  const [old, next] = configs.map(written) as [string, string];
  const [oldObserves, newObserves] = configs.map((config) =>
    written({ ...config, idempotency: { ...config.idempotency, mode: 'observe' } }),
  ) as [string, string];
  const copy = (fromFile: string, toFile: string, ...more: string[]) =>
    run(['records', 'copy', '--from', fromFile, '--to', toFile, ...more]);
  const source = await startGateway(configs[0]);
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
  const readiness = async ({ adminUrl }: SpawnedGateway) =>
    (await send(adminUrl, { path: '/readyz' })).status;
  expect(await readiness(source)).toBe(200);

  expect(await copy(old, next, '--prepare')).toMatchObject({ code: 0 });
  // Its configuration was changed after the command has read it.
  const observes = await startGateway({ ...configs[1], idempotency: { mode: 'observe' } });
  expect(await readiness(observes)).toBe(503);
  expect(await copy(oldObserves, newObserves, '--undo')).toMatchObject({ code: 0 });
  expect(await readiness(observes)).toBe(200);
});
