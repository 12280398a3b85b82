import { randomUUID } from 'node:crypto';
import http from 'node:http';
import { fileURLToPath } from 'node:url';
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from 'vitest';
import type { Sandbox } from '../../src/sandbox/create-sandbox.ts';
import { backendForFile } from '../support/backend.ts';
import { BEARER, send, withdraw } from '../support/client.ts';
import { newFolder } from '../support/command.ts';
import { testConfig } from '../support/config.ts';
import { type PostgresServer, startPostgres } from '../support/postgres-server.ts';
import { type SpawnedGateway, spawnGateway } from '../support/spawn.ts';
import { openSandbox, stackForFile } from '../support/stack.ts';
import { onPostgres, storeKinds, storeSections } from '../support/stores.ts';
import { until } from '../support/until.ts';

/** PostgreSQL counts the statements that it gets. */
const COUNTING = { shared_preload_libraries: 'pg_stat_statements' };
const COUNTER = fileURLToPath(new URL('./count-work.ts', import.meta.url));
/** Only a machine that is never quiet needs more than the first few. */
const BATCHES = 50;
const REQUESTS = 10;
const LARGE_BYTES = 16_384;
const BODY_BYTES = 32_768;

interface Work {
  promises: number;
  timers: number;
}

/** What a gateway does for each request, in counts that do not depend on the machine. */
describe.each(storeKinds)('on %s, the gateway needs for', (kind) => {
  let sandbox: Sandbox;
  let gateway: SpawnedGateway;
  let postgres: PostgresServer | undefined;
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  const balance = () => send(gateway.url, { path: '/v2/get_balance', headers: BEARER, agent });
  const pay = (key: string = randomUUID()) => withdraw(gateway.url, { key, agent });
  const upload = () =>
    send(gateway.url, {
      method: 'POST',
      path: '/v2/files',
      headers: { ...BEARER, 'x-service-idempotency': randomUUID() },
      body: 'x'.repeat(BODY_BYTES),
      agent,
    });

  beforeAll(async () => {
    sandbox = await openSandbox();
    if (kind === 'postgres') postgres = await startPostgres(COUNTING);
    await postgres?.admin.query('CREATE EXTENSION pg_stat_statements');
    const sections = postgres ? onPostgres(postgres) : await storeSections(kind);
    const config = testConfig(newFolder(), sandbox.url, sections);
    gateway = await spawnGateway(config, { NODE_OPTIONS: `--import=${COUNTER}` });
    for (const request of [balance, pay, upload]) await request();
  });
  afterAll(async () => {
    agent.destroy();
    await gateway?.end();
  });

  /** Of gateways, not those of this test. */
  async function statements(): Promise<number> {
    const text = `SELECT sum(calls)::int AS n FROM pg_stat_statements WHERE query LIKE '%oncegate.%'`;
    return (await postgres?.admin.query(text))?.rows[0].n ?? 0;
  }

  async function counts(): Promise<Record<string, number>> {
    const seen = gateway.lines.length;
    gateway.child.kill('SIGUSR2');
    const line = await until(() => gateway.lines.slice(seen).find((one) => one.startsWith('counts ')));
    return { ...JSON.parse(line.slice('counts '.length)), statements: await statements() };
  }

  /**
   * How much of this a request makes the gateway do, in the first batch with no more than `most`, or else in the quietest one:
   * the process also reads its key file meanwhile.
   */
  async function perRequest(name: string, most: number, request: () => Promise<unknown>): Promise<number> {
    let least = Number.POSITIVE_INFINITY;
    for (let batch = 0; batch < BATCHES && Math.round(least) > most; batch++) {
      const before = await counts();
      for (let i = 0; i < REQUESTS; i++) await request();
      const after = await counts();
      least = Math.min(least, ((after[name] ?? 0) - (before[name] ?? 0)) / REQUESTS);
    }
    return Math.round(least);
  }

  /** Node and undici set two of the timers. */
  async function expectAtMost(most: Work, request: () => Promise<unknown>): Promise<void> {
    const promises = await perRequest('PROMISE', most.promises, request);
    expect(promises).toBeGreaterThan(0);
    expect(promises).toBeLessThanOrEqual(most.promises);
    expect(await perRequest('Timeout', most.timers, request)).toBeLessThanOrEqual(most.timers);
  }

  it('a balance read no more than 6 promises', async () => {
    await expectAtMost({ promises: 6, timers: 3 }, balance);
  });

  // What counts there is the round trips. The promises of its client are not bounded.
  if (kind === 'postgres') {
    it('a first-time payout two statements, and a replay one', async () => {
      const key = randomUUID();
      await pay(key);
      expect(await perRequest('statements', 2, () => pay())).toBe(2);
      expect(await perRequest('statements', 1, () => pay(key))).toBe(1);
    });
  } else {
    it('a first-time payout no more than 25 promises', async () => {
      // The fourth timer is that of all commands to Redis, which is set again at most every 10 ms.
      await expectAtMost({ promises: 25, timers: 4 }, () => pay());
    });

    it('a replay no more than 14 promises and two timers', async () => {
      const key = randomUUID();
      await pay(key);
      await expectAtMost({ promises: 14, timers: 2 }, () => pay(key));
    });
  }

  it('a body of 32 KiB one copy of it, for its digest', async () => {
    // A few other bytes are copied too.
    const most = 1.4 * BODY_BYTES;
    expect(Math.round((await perRequest('copiedBytes', most, upload)) / BODY_BYTES)).toBe(1);
  });
});

let connections = 0;
const paying = http.createServer((req, res) => {
  req.resume().once('end', () => res.writeHead(201, { 'content-length': 2 }).end('{}'));
});
paying.on('connection', () => connections++);
const url = await backendForFile(paying);
const stack = await stackForFile({ upstream: { url, keepAliveMs: 60_000 } });

describe('a request costs', () => {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  const balance = () => send(stack.url, { path: '/v2/get_balance', headers: BEARER, agent });
  const pay = (key: string) => withdraw(stack.url, { key, agent });

  beforeAll(async () => {
    for (let i = 0; i < REQUESTS; i++) await Promise.all([balance(), pay(randomUUID())]);
  });
  afterAll(() => agent.destroy());
  afterEach(() => vi.restoreAllMocks());

  it('no connection to the backend more than are in use at once', async () => {
    const before = connections;
    for (let i = 0; i < REQUESTS; i++) {
      await balance();
      await pay(randomUUID());
    }
    expect(connections - before).toBe(0);
  });

  it('no large buffer', async () => {
    const sizes: number[] = [];
    for (const name of ['alloc', 'allocUnsafe', 'allocUnsafeSlow'] as const) {
      const allocate = Buffer[name].bind(Buffer) as (size: number, ...more: never[]) => Buffer<ArrayBuffer>;
      vi.spyOn(Buffer, name).mockImplementation((size: number, ...more: unknown[]) => {
        sizes.push(size);
        return allocate(size, ...(more as never[]));
      });
    }
    for (let i = 0; i < REQUESTS; i++) {
      await balance();
      await pay(randomUUID());
    }
    expect(sizes.length).toBeGreaterThan(0);
    expect(sizes.filter((size) => size >= LARGE_BYTES)).toEqual([]);
  });
});
