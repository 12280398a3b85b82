import { randomUUID } from 'node:crypto';
import http from 'node:http';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createSandbox, type Sandbox } from '../../src/sandbox/sandbox.ts';
import { send, withdraw } from '../support/client.ts';
import { FAST_START, newFolder } from '../support/command.ts';
import { testConfig } from '../support/config.ts';
import { type SpawnedGateway, spawnGateway } from '../support/spawn.ts';
import { storeKinds, storeSections } from '../support/stores.ts';
import { until } from '../support/until.ts';

const COUNTER = fileURLToPath(new URL('../support/count-work.ts', import.meta.url));
const BATCHES = 6;
const REQUESTS = 10;
const BODY_BYTES = 32_768;

interface Work {
  promises: number;
  timers: number;
  /** How often the body of {@link BODY_BYTES} is copied. */
  bodyCopies: number;
}

/** What a gateway does for each request, in counts that do not depend on the machine. */
describe.each(storeKinds)('on %s, the gateway needs for', (kind) => {
  let sandbox: Sandbox;
  let gateway: SpawnedGateway;
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  const authorization = 'Bearer sk_sandbox_alpha';
  const balance = () => send(gateway.url, { path: '/v2/get_balance', headers: { authorization }, agent });
  const pay = (key: string = randomUUID()) => withdraw(gateway.url, { key, agent });
  const upload = () =>
    send(gateway.url, {
      method: 'POST',
      path: '/v2/files',
      headers: { authorization, 'x-service-idempotency': randomUUID() },
      body: 'x'.repeat(BODY_BYTES),
      agent,
    });

  beforeAll(async () => {
    sandbox = await createSandbox({ port: 0 });
    const config = testConfig(newFolder(), sandbox.url, await storeSections(kind));
    gateway = await spawnGateway(config, { ...FAST_START, NODE_OPTIONS: `--import=${COUNTER}` }, newFolder());
    for (const request of [balance, pay, upload]) await request();
  });
  afterAll(async () => {
    agent.destroy();
    await gateway?.end();
    await sandbox?.close();
  });

  async function counts(): Promise<Record<string, number>> {
    const seen = gateway.lines.length;
    gateway.child.kill('SIGUSR2');
    const line = await until(() => gateway.lines.slice(seen).find((one) => one.includes('"msg":"counts"')));
    return JSON.parse(line);
  }

  /**
   * For each request, in the batch with the least: the process also reads its key file and tidies its store meanwhile. Node and
   * undici set two of the timers.
   */
  async function expectAtMost(most: Work, request: () => Promise<unknown>): Promise<void> {
    const least: Work = { promises: Infinity, timers: Infinity, bodyCopies: Infinity };
    for (let batch = 0; batch < BATCHES; batch++) {
      const before = await counts();
      for (let i = 0; i < REQUESTS; i++) await request();
      const after = await counts();
      const of = (name: string) => ((after[name] ?? 0) - (before[name] ?? 0)) / REQUESTS;
      least.promises = Math.min(least.promises, Math.round(of('PROMISE')));
      least.timers = Math.min(least.timers, Math.round(of('Timeout')));
      least.bodyCopies = Math.min(least.bodyCopies, Math.round(of('copiedBytes') / BODY_BYTES));
    }
    expect(least.promises).toBeGreaterThan(0);
    for (const name of ['promises', 'timers', 'bodyCopies'] as const)
      expect(least[name], `${name} of ${JSON.stringify(least)}`).toBeLessThanOrEqual(most[name]);
  }

  it('a balance read no more than 6 promises', async () => {
    await expectAtMost({ promises: 6, timers: 3, bodyCopies: 0 }, balance);
  });

  it('a first-time payout no more than 25 promises', async () => {
    // The fourth timer is that of all commands to Redis, which is set again at most every 10 ms.
    await expectAtMost({ promises: 25, timers: 4, bodyCopies: 0 }, () => pay());
  });

  it('a replay no more than 14 promises and two timers', async () => {
    const key = randomUUID();
    await pay(key);
    await expectAtMost({ promises: 14, timers: 2, bodyCopies: 0 }, () => pay(key));
  });

  it('a body of 32 KiB no more than one copy of it, for its digest', async () => {
    // The fifth timer limits the time of a body that does not arrive at once.
    await expectAtMost({ promises: 25, timers: 5, bodyCopies: 1 }, upload);
  });
});
