import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createSandbox, type Sandbox } from '../../../src/sandbox/sandbox.ts';
import { withdraw } from '../../support/client.ts';
import { FAST_START, newFolder } from '../../support/command.ts';
import { testConfig } from '../../support/config.ts';
import { monitorRedis, type SeenCommand } from '../../support/redis-monitor.ts';
import { type RedisServer, startRedis } from '../../support/redis-server.ts';
import { type SpawnedGateway, spawnGateway } from '../../support/spawn.ts';
import { onRedis } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

let sandbox: Sandbox;
let redis: RedisServer;
let gateways: SpawnedGateway[];
/** Commands that clients sent, in order. */
const seen: SeenCommand[] = [];
beforeAll(async () => {
  [sandbox, redis] = await Promise.all([createSandbox({ port: 0 }), startRedis()]);
  const config = testConfig(newFolder(), sandbox.url, onRedis(redis));
  gateways = await Promise.all([1, 2].map(() => spawnGateway(config, FAST_START, newFolder())));
  // From now on Redis knows the scripts.
  for (const fault of ['delay=1', 'status=429', 'execute-then-reset'])
    await withdraw(urlOf(0), { key: randomUUID(), fault });
  await redis.admin.ping();
  await monitorRedis(redis.port, (command) => seen.push(command));
});
afterAll(async () => {
  await Promise.all(gateways?.map((gateway) => gateway.end('SIGKILL')) ?? []);
  await sandbox?.close();
});

const urlOf = (at: number) => (gateways[at] as SpawnedGateway).url;

/** The commands that Redis got from the gateways during `work`. */
async function commandsOf(work: () => Promise<unknown>): Promise<string[]> {
  const fence = async () => {
    const marker = randomUUID();
    await redis.admin.echo(marker);
    return await until(() => seen.findIndex(({ args }) => args[0] === marker) + 1);
  };
  const from = await fence();
  await work();
  const to = await fence();
  return seen.slice(from, to - 1).map(({ name }) => name);
}

describe('MONITOR shows', () => {
  it('two commands for a first payout, and one for a replay', async () => {
    const key = randomUUID();
    const pay = (at: number) => async () => {
      expect((await withdraw(urlOf(at), { key })).status).toBe(201);
    };
    expect(await commandsOf(pay(0))).toEqual(['evalsha', 'evalsha']);
    expect(await commandsOf(pay(0))).toEqual(['evalsha']);
    expect(await commandsOf(pay(1))).toEqual(['evalsha']);
    expect(sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('two commands for 50 withdraws with one key at once', async () => {
    const key = randomUUID();
    const commands = await commandsOf(async () => {
      const burst = Array.from({ length: 50 }, () => withdraw(urlOf(0), { key, fault: 'delay=300' }));
      const answers = await Promise.all(burst);
      expect(new Set(answers.map(({ status, body }) => `${status} ${body}`))).toHaveLength(1);
    });
    // On a loaded machine some of them may arrive after the result, and read the store.
    expect(commands.slice(0, 2)).toEqual(['evalsha', 'evalsha']);
    expect(commands.length).toBeLessThan(10);
    expect(sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('one command for a conflict, two for a release, and two for a key whose outcome becomes unknown', async () => {
    const [known, released, doubtful] = [randomUUID(), randomUUID(), randomUUID()];
    await withdraw(urlOf(0), { key: known });
    expect(await commandsOf(() => withdraw(urlOf(0), { key: known, amount: 11 }))).toHaveLength(1);
    const release = () => withdraw(urlOf(0), { key: released, fault: 'status=429' });
    expect(await commandsOf(release)).toHaveLength(2);
    const lose = () => withdraw(urlOf(0), { key: doubtful, fault: 'execute-then-reset' });
    expect(await commandsOf(lose)).toHaveLength(2);
    expect(await commandsOf(() => withdraw(urlOf(1), { key: doubtful }))).toHaveLength(1);
  });
});
