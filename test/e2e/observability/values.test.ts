import { readFileSync, renameSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import request from 'supertest';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { withdraw } from '../../support/client.ts';
import { keyFileIn } from '../../support/config.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { type Scrape, scrape } from './support/scrape.ts';
import { idle } from './support/traffic.ts';

const MAX_STORED_BYTES = 1024;

let stack: Stack;
beforeAll(async () => {
  stack = await openStack({
    idempotency: { maxStoredBytes: MAX_STORED_BYTES },
    upstream: { responseTimeoutMs: 3000 },
  });
});
afterAll(() => stack.close());

const merchant = () => request.agent(stack.url).auth('sk_sandbox_alpha', { type: 'bearer' });

describe('the traffic of these tests', () => {
  let shown: Scrape;
  beforeAll(async () => {
    const { url } = stack;
    const huge = `huge=${2 * MAX_STORED_BYTES}`;
    await merchant().get('/v2/get_balance').expect(200);
    await merchant().get('/v3/echo').expect(200);
    await merchant().post('/v1/index.php').send({ action: 'other' }).expect(422);
    for (const status of [201, 201, 201]) expect((await withdraw(url, { key: 'a' })).status).toBe(status);
    expect((await withdraw(url, { key: 'a', amount: 11 })).status).toBe(422);
    expect((await withdraw(url)).status).toBe(201);
    expect((await withdraw(url, { key: 'b', fault: 'status=403' })).status).toBe(403);
    expect((await withdraw(url, { key: 'b' })).status).toBe(201);
    expect((await withdraw(url, { key: 'c', fault: 'execute-then-reset' })).status).toBe(502);
    for (const status of [409, 409]) expect((await withdraw(url, { key: 'c' })).status).toBe(status);
    expect((await withdraw(url, { key: 'd', fault: 'execute-then-hang' })).status).toBe(504);
    expect((await withdraw(url, { key: 'e', fault: huge })).status).toBe(201);
    expect((await withdraw(url, { key: 'e', fault: huge })).status).toBe(409);
    expect((await withdraw(url, { secret: 'sk_nobody' })).status).toBe(401);
    const first = withdraw(url, { key: 'f', fault: 'delay=60000' });
    await until(() => stack.sandbox.requests.ofKey('f') > 0);
    expect((await withdraw(url, { key: 'f', headers: { Prefer: 'wait=0' } })).status).toBe(409);
    stack.sandbox.endDelays('f');
    expect((await first).status).toBe(201);
    shown = await idle(stack.adminUrl);
  });

  it('is counted by operation and outcome', () => {
    expect(shown.table('oncegate_requests_total', 'operation', 'outcome')).toEqual({
      'balance forwarded': 1,
      'undeclared passed_through': 1,
      'other forwarded': 1,
      'none invalid_key': 1,
      'withdraw executed': 4,
      'withdraw forwarded': 1,
      'withdraw idempotency_key_reused': 1,
      'withdraw outcome_unknown': 4,
      'withdraw released': 1,
      'withdraw replayed': 2,
      'withdraw request_in_flight': 1,
      'withdraw response_not_stored': 1,
    });
  });

  it('is measured once for each request, and the gateway’s share without passed-through requests', () => {
    const byOperation = { balance: 1, other: 1, none: 1, withdraw: 15 };
    expect(shown.table('oncegate_gateway_duration_seconds_count', 'operation')).toEqual(byOperation);
    const all = { ...byOperation, undeclared: 1 };
    expect(shown.table('oncegate_request_duration_seconds_count', 'operation')).toEqual(all);
    expect(shown.table('oncegate_request_duration_seconds_bucket', 'operation', 'le')).toMatchObject(
      Object.fromEntries(Object.entries(all).map(([operation, count]) => [`${operation} +Inf`, count])),
    );
  });

  it('has retries counted by their result', () => {
    expect(shown.table('oncegate_idempotency_hits_total', 'operation')).toEqual({ withdraw: 2 });
    expect(shown.table('oncegate_idempotency_conflicts_total', 'operation', 'kind')).toEqual({
      'withdraw mismatch': 1,
      'withdraw in_doubt': 2,
      'withdraw in_flight': 1,
      'withdraw not_stored': 1,
    });
    expect(shown.table('oncegate_unprotected_total', 'operation')).toEqual({ withdraw: 1 });
  });

  it('has keys in doubt counted by cause', () => {
    const causes = { 'withdraw connection': 1, 'withdraw timeout': 1 };
    expect(shown.table('oncegate_in_doubt_total', 'operation', 'cause')).toEqual(causes);
  });

  it('was sent to the backend once for each execution', () => {
    expect(shown.table('oncegate_upstream_duration_seconds_count', 'operation', 'result')).toEqual({
      'balance complete': 1,
      'other complete': 1,
      'withdraw complete': 5,
      'withdraw oversize': 1,
      'withdraw unknown': 2,
    });
    expect(stack.sandbox.requests.ofPath('POST /v1/index.php')).toBe(9);
  });

  it('used the expected commands of the store', () => {
    const commands = shown.table('oncegate_store_duration_seconds_count', 'command', 'result');
    // The warnings are counted when the metrics are read.
    delete commands['health ok'];
    expect(commands).toEqual({
      'start ok': 13,
      'complete ok': 4,
      'release ok': 1,
      'in_doubt ok': 2,
    });
  });

  it('caused no stale write, lost lease or late complete', () => {
    for (const name of ['stale', 'lease_lost', 'complete_late']) {
      expect(shown.value(`oncegate_${name}_total`), name).toBe(0);
    }
  });
});

describe('the gauges', () => {
  it('rise during the work, and are 0 after it', async () => {
    const { url, adminUrl, sandbox } = stack;
    const gauges = (shown: Scrape) =>
      ['in_flight', 'executing', 'waiting'].map((name) => shown.value(`oncegate_${name}`));
    const first = withdraw(url, { key: 'g', fault: 'delay=60000' });
    await until(() => sandbox.requests.ofKey('g') > 0);
    const duplicate = withdraw(url, { key: 'g', fault: 'delay=60000' });
    const seen = await until(async () => {
      const now = gauges(await scrape(adminUrl));
      return now[2] === 1 ? now : undefined;
    });
    expect(seen).toEqual([2, 1, 1]);
    sandbox.endDelays('g');
    expect([(await first).status, (await duplicate).status]).toEqual([201, 201]);
    expect(gauges(await idle(adminUrl))).toEqual([0, 0, 0]);
  });

  it('count an execution whose merchant has disconnected', async () => {
    const { url, adminUrl, sandbox } = stack;
    const leaving = new AbortController();
    const gone = withdraw(url, { key: 'h', fault: 'delay=60000', signal: leaving.signal }).catch(
      () => 'gone',
    );
    await until(() => sandbox.requests.ofKey('h') > 0);
    leaving.abort();
    expect(await gone).toBe('gone');
    const shown = await scrape(adminUrl);
    expect([shown.value('oncegate_in_flight'), shown.value('oncegate_executing')]).toEqual([1, 1]);
    sandbox.endDelays('h');
    await idle(adminUrl);
  });
});

describe('the time', () => {
  it('of the gateway is the duration without the backend and without waiting', async () => {
    const { url, adminUrl, sandbox, log } = stack;
    const [before, lines] = [await idle(adminUrl), log.length];
    const first = withdraw(url, { key: 'i', fault: 'delay=60000' });
    await until(() => sandbox.requests.ofKey('i') > 0);
    const heldFromMs = performance.now();
    const duplicate = withdraw(url, { key: 'i' });
    await until(async () => (await scrape(adminUrl)).value('oncegate_waiting') === 1);
    await sleep(50);
    const heldS = (performance.now() - heldFromMs) / 1000;
    sandbox.endDelays('i');
    await Promise.all([first, duplicate]);
    const after = await idle(adminUrl);
    const grown = (name: string) => (after.value(name) ?? 0) - (before.value(name) ?? 0);
    const logged = log.slice(lines).filter(({ msg }) => msg === 'request') as Record<string, number>[];
    const sum = (field: string) => logged.reduce((all, line) => all + (line[field] ?? 0), 0) / 1000;
    expect(grown('oncegate_upstream_duration_seconds_sum')).toBeGreaterThanOrEqual(heldS);
    expect(sum('waitMs')).toBeGreaterThan(0);
    expect(grown('oncegate_request_duration_seconds_sum')).toBeCloseTo(sum('durationMs'), 3);
    expect(grown('oncegate_upstream_duration_seconds_sum')).toBeCloseTo(sum('upstreamMs'), 3);
    const own = sum('durationMs') - sum('upstreamMs') - sum('waitMs');
    expect(grown('oncegate_gateway_duration_seconds_sum')).toBeCloseTo(own, 3);
  });
});

describe('the secret keys', () => {
  it('are counted, and so are key files that are accepted or refused', async () => {
    const { adminUrl, config } = stack;
    const path = keyFileIn(config);
    const reloads = async (result: string) =>
      (await scrape(adminUrl)).value('oncegate_key_reloads_total', { result });
    const keys = readFileSync(path, 'utf8').split('dangerouslyPlainSecret').length - 1;
    expect((await scrape(adminUrl)).value('oncegate_secret_keys')).toBe(keys);
    replace(path, 'merchants: nonsense');
    await until(async () => (await reloads('refused')) === 1);
    expect(await reloads('ok')).toBe(0);
    expect((await scrape(adminUrl)).value('oncegate_secret_keys')).toBe(keys);
    const { body } = await request(adminUrl).get('/readyz').expect(200);
    expect(body.checks).toContainEqual({
      name: 'keys',
      ok: true,
      detail: expect.stringContaining('refused'),
    });
    expect((await scrape(adminUrl)).value('oncegate_merchants_expiring')).toBe(0);
    expect((await scrape(adminUrl)).value('oncegate_secret_key_expires_timestamp_seconds')).toBeUndefined();
    const tomorrow = new Date(Date.now() + 86_400_000).toISOString();
    const item = `{ id: one, dangerouslyPlainSecret: sk_one, expiresAt: ${tomorrow} }`;
    replace(path, `merchants: [{ code: M-1, keys: [${item}] }]`);
    await until(async () => (await reloads('ok')) === 1);
    expect((await scrape(adminUrl)).value('oncegate_secret_keys')).toBe(1);
    expect((await scrape(adminUrl)).value('oncegate_merchants_expiring')).toBe(1);
    expect((await scrape(adminUrl)).value('oncegate_secret_key_expires_timestamp_seconds')).toBe(
      Date.parse(tomorrow) / 1000,
    );
  });

  /** Atomically, so that the gateway never reads half of the file. */
  function replace(path: string, text: string): void {
    const newFile = join(dirname(path), 'new-keys.yaml');
    writeFileSync(newFile, text);
    renameSync(newFile, path);
  }
});
