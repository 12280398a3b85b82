import { readFileSync, statfsSync, writeFileSync } from 'node:fs';
import http, { METHODS } from 'node:http';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { parse, stringify } from 'yaml';
import { CATALOGUE } from '../../../src/telemetry/catalogue.ts';
import type { Definition, LabelValues } from '../../../src/telemetry/definition.ts';
import { BEARER, send, withdraw } from '../../support/client.ts';
import { parsedConfig, replaceFile, temporaryFolder, writeKeys } from '../../support/config.ts';
import { idle, metric, type Scrape, scrape } from '../../support/metrics.ts';
import { payoutBody } from '../../support/payout.ts';
import { rawExchange } from '../../support/raw.ts';
import { stackForFile, stackForTest } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { busyTraffic, sections } from './support/traffic.ts';

/** Merchants, each with a key, and as many requests with names that nobody has sent before. */
const UNSEEN = 400;
/** Names that a careless map or exposition takes for something else. All of them are allowed as merchant codes. */
const HOSTILE = [
  ...['__proto__', 'constructor', 'toString', 'none', 'other', '"},x="1', '\\', '\\n', '{}', '#'],
  ...['le', '+Inf'],
];
const NAMED = ['M-ALPHA', '__proto__', '"},x="1'];
const SLOTS = 7;
/** What Prometheus sends: versions 2 and 3, and 3 where UTF-8 names are switched off. */
const OPEN_METRICS = [
  'application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1',
  'application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2',
  'application/openmetrics-text;version=1.0.0;escaping=underscores;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1',
];

const secretOf = (i: number): string => `sk_unseen_${i}`;

/** The sandbox's merchants, and those that it does not know. */
function writeMerchants(): string {
  const path = writeKeys(temporaryFolder());
  const { merchants } = parse(readFileSync(path, 'utf8'));
  const unseen = Array.from({ length: UNSEEN }, (_, i) => ({
    code: HOSTILE[i] ?? `M-${i}`,
    keys: [{ id: `unseen-${i}`, dangerouslyPlainSecret: secretOf(i) }],
  }));
  writeFileSync(path, stringify({ merchants: [...merchants, ...unseen] }));
  return path;
}

/** The names of a metric's series that can be looked up by the metric's labels. */
const seriesNameOf = ({ type, name }: Definition) => (type === 'histogram' ? `${name}_count` : name);

function combinationsOf(
  labels: Readonly<Record<string, LabelValues>>,
  sets: Record<string, readonly string[]>,
) {
  let found: Record<string, string>[] = [{}];
  for (const [label, values] of Object.entries(labels)) {
    const words = typeof values === 'string' ? (sets[values] ?? []) : values;
    found = found.flatMap((one) => words.map((value) => ({ ...one, [label]: value })));
  }
  return found;
}

/**
 * What {@link busyTraffic} counts: every counter, and how often every histogram measured, unless it is 0. The gateway's own time is
 * not measured of requests that are passed through.
 */
const COUNTED = {
  oncegate_requests_total: {
    ...{ 'balance forwarded': 1, 'other forwarded': 1 },
    ...{ 'undeclared passed_through': 1, 'undeclared upgraded': 1 },
    ...{ 'none missing_credentials': 1, 'none invalid_key': 1, 'none rate_limited': 1, 'none overloaded': 1 },
    ...{ 'none invalid_request': 1, 'none invalid_target': 1, 'none merchant_gone': 4 },
    ...{ 'refund body_too_large': 1, 'refund idempotency_key_required': 1 },
    ...{ 'withdraw executed': 4, 'withdraw replayed': 1, 'withdraw released': 1, 'withdraw forwarded': 1 },
    ...{ 'withdraw outcome_unknown': 3, 'withdraw request_in_flight': 1, 'withdraw response_not_stored': 1 },
    ...{ 'withdraw idempotency_key_reused': 1, 'withdraw idempotency_key_invalid': 1 },
    'withdraw insufficient_scope': 1,
  },
  oncegate_request_duration_seconds: {
    balance: 1,
    none: 10,
    other: 1,
    refund: 2,
    undeclared: 2,
    withdraw: 15,
  },
  oncegate_gateway_duration_seconds: { balance: 1, none: 10, other: 1, refund: 2, withdraw: 15 },
  oncegate_rate_limited_total: { requests: 1 },
  oncegate_merchant_requests_total: {
    ...{ 'M-ALPHA executed': 3, 'M-ALPHA replayed': 1, 'M-ALPHA released': 1, 'M-ALPHA forwarded': 2 },
    ...{ 'M-ALPHA passed_through': 1, 'M-ALPHA upgraded': 1, 'M-ALPHA merchant_gone': 4 },
    ...{ 'M-ALPHA outcome_unknown': 2, 'M-ALPHA request_in_flight': 1, 'M-ALPHA response_not_stored': 1 },
    ...{ 'M-ALPHA idempotency_key_reused': 1, 'M-ALPHA idempotency_key_invalid': 1 },
    ...{ 'M-ALPHA idempotency_key_required': 1, 'M-ALPHA insufficient_scope': 1 },
    'M-ALPHA body_too_large': 1,
    ...{ 'other executed': 1, 'other forwarded': 1, 'other outcome_unknown': 1, 'other rate_limited': 1 },
  },
  oncegate_merchant_request_duration_seconds: { 'M-ALPHA': 22, other: 4 },
  oncegate_merchant_in_doubt_total: { 'M-ALPHA': 1, other: 1 },
  oncegate_idempotency_hits_total: { withdraw: 1 },
  oncegate_idempotency_conflicts_total: {
    ...{ 'withdraw mismatch': 1, 'withdraw in_flight': 1, 'withdraw in_doubt': 1, 'withdraw not_stored': 1 },
  },
  oncegate_unprotected_total: { withdraw: 1 },
  oncegate_in_doubt_total: { 'withdraw connection': 1, 'withdraw status': 1 },
  oncegate_store_duration_seconds: {
    ...{ 'start ok': 11, 'complete ok': 4, 'release ok': 1, 'in_doubt ok': 2 },
    // The id of the store, at the start.
    ...{ 'read_mark ok': 1, 'mark ok': 1 },
  },
  oncegate_upstream_duration_seconds: {
    ...{ 'balance complete': 1, 'other complete': 1 },
    ...{ 'withdraw complete': 6, 'withdraw oversize': 1, 'withdraw unknown': 1 },
  },
  oncegate_upstream_responses_total: {
    ...{ 'balance 2xx': 1, 'other 4xx': 1, 'undeclared 2xx': 1 },
    // A reset, and a 504 of a proxy: neither says what the backend has done.
    ...{ 'withdraw 2xx': 5, 'withdraw 4xx': 1, 'withdraw unknown': 2 },
  },
};

const keyFile = writeMerchants();
const openedMs = performance.now();
const stack = await stackForFile({
  ...sections,
  auth: {
    keys: { source: 'file', path: keyFile },
    ...{ forward: 'replace', replaceWith: 'Bearer sk_sandbox_alpha' },
  },
  metrics: { merchants: NAMED },
  // No request of this stack is meant to end by a time limit, on however slow a machine.
  store: { kind: 'sqlite', path: join(temporaryFolder(), 'data'), timeoutMs: 60_000 },
  upstream: { maxConnections: SLOTS, responseTimeoutMs: 600_000 },
});
const fresh = await scrape(stack.adminUrl);

const now = () => scrape(stack.adminUrl);

describe('a gateway without traffic', () => {
  it('exports the series that the catalogue declares, and no other, at 0 if they count', () => {
    const operations = [...(sections.operations ?? []).map(({ name }) => name), 'other', 'undeclared'];
    const sets = {
      operations,
      'operations, none': [...operations, 'none'],
      merchants: [...NAMED, 'other'],
    };
    for (const definition of Object.values<Definition>(CATALOGUE)) {
      if (definition.exists !== 'start') continue;
      const name = seriesNameOf(definition);
      const series = combinationsOf(definition.labels, sets);
      const found = fresh.samples.filter((sample) => sample.name === name);
      expect.soft(found.length, name).toBe(series.length);
      for (const labels of series)
        expect.soft(fresh.value(name, labels), `${name} ${JSON.stringify(labels)}`).toBeDefined();
      if (definition.type === 'counter')
        expect
          .soft(
            found.filter(({ value }) => value !== 0),
            name,
          )
          .toEqual([]);
    }
    const defined: string[] = Object.values(CATALOGUE).map(({ name }) => name);
    const ours = fresh.families.filter((family) => family.startsWith('oncegate_'));
    expect(ours.filter((family) => !defined.includes(family))).toEqual([]);
    expect(fresh.series.length).toBeGreaterThan(400);
  });

  it('shows its state: store, slots, keys and configuration', async () => {
    const { store } = parsedConfig(stack.config);
    const { bavail, bsize } = statfsSync(store.kind === 'sqlite' ? store.path : '');
    const free = fresh.value('oncegate_store_disk_free_bytes') ?? 0;
    expect(Math.abs(free / (bavail * bsize) - 1)).toBeLessThan(0.1);
    expect(await until(() => metric(stack.adminUrl, 'oncegate_sqlite_wal_bytes'))).toBeGreaterThan(4096);
    expect(fresh.value('oncegate_upstream_slots')).toBe(SLOTS);
    expect(Object.keys(fresh.table('oncegate_store_info', 'store'))).toEqual([
      expect.stringMatching(/^[0-9a-f]{16}$/),
    ]);
    expect(fresh.value('oncegate_secret_keys')).toBe(8 + UNSEEN);
    expect(fresh.table('oncegate_config_info', 'mode', 'undeclared', 'store', 'keys')).toEqual({
      'protect protect sqlite file': 1,
    });
  });
});

describe('traffic', () => {
  it('is counted once, by what became of it, and each request has one line in the log', async () => {
    await busyTraffic(stack);
    const shown = await idle(stack.adminUrl);
    const counted = Object.values<Definition>(CATALOGUE)
      .filter(({ type }) => type !== 'gauge')
      .map((one) => [one.name, shown.table(seriesNameOf(one), ...Object.keys(one.labels))] as const);
    const found = Object.fromEntries(counted.filter(([, table]) => Object.keys(table).length > 0));
    const { oncegate_sqlite_commit_duration_seconds: commits, ...others } = found;
    // The warnings are counted when the metrics are read.
    delete others.oncegate_store_duration_seconds?.['health ok'];
    expect(others).toEqual(COUNTED);
    // Several commands may share a commit.
    expect(commits?.['']).toBeGreaterThan(10);
    const seconds = shown.value('oncegate_sqlite_commit_duration_seconds_sum') ?? 0;
    expect(seconds).toBeGreaterThan(0);
    // One thread commits, so its times cannot overlap.
    expect(seconds).toBeLessThan((performance.now() - openedMs) / 1000);
    const { oncegate_request_duration_seconds: measured, oncegate_requests_total: requests } = COUNTED;
    expect(shown.table('oncegate_request_duration_seconds_bucket', 'operation', 'le')).toMatchObject(
      Object.fromEntries(Object.entries(measured).map(([operation, count]) => [`${operation} +Inf`, count])),
    );
    const lines: Record<string, number> = {};
    for (const { operation, outcome } of stack.log.filter(({ msg }) => msg === 'request')) {
      const row = `${operation} ${outcome}`;
      lines[row] = (lines[row] ?? 0) + 1;
    }
    expect(lines).toEqual(requests);
    const sent = Object.values(COUNTED.oncegate_upstream_duration_seconds).reduce((sum, one) => sum + one);
    // And one that was passed through, and one that was upgraded.
    expect(stack.sandbox.requests.total()).toBe(sent + 2);
  });

  it('shows in gauges while it runs, and its times are those of the log', async () => {
    const { url, adminUrl, sandbox, log } = stack;
    const [before, lines] = [await idle(adminUrl), log.length];
    const gauges = (shown: Scrape) =>
      ['in_flight', 'executing', 'waiting', 'upstream_slots_in_use'].map((name) =>
        shown.value(`oncegate_${name}`),
      );
    const leaving = new AbortController();
    const held = { key: 'held', fault: 'delay=60000' };
    const first = withdraw(url, { ...held, signal: leaving.signal }).catch(() => 'gone');
    await until(() => sandbox.requests.ofKey('held') > 0);
    const heldFromMs = performance.now();
    const duplicate = withdraw(url, held);
    await until(async () => (await metric(adminUrl, 'oncegate_waiting')) === 1);
    // The execution goes on without its merchant.
    leaving.abort();
    expect(await first).toBe('gone');
    expect(gauges(await now())).toEqual([2, 1, 1, 1]);
    await sleep(50);
    const heldS = (performance.now() - heldFromMs) / 1000;
    sandbox.endDelays('held');
    expect((await duplicate).status).toBe(201);
    const after = await idle(adminUrl);
    expect(gauges(after)).toEqual([0, 0, 0, 0]);
    const grown = (name: string) => {
      const sum = `oncegate_${name}_duration_seconds_sum`;
      return (after.value(sum) ?? 0) - (before.value(sum) ?? 0);
    };
    const logged = log.slice(lines).filter(({ msg }) => msg === 'request') as Record<string, number>[];
    const sum = (field: string) => logged.reduce((all, line) => all + (line[field] ?? 0), 0) / 1000;
    expect(logged).toHaveLength(2);
    expect(logged.filter(({ merchantGone }) => merchantGone)).toMatchObject([{ outcome: 'executed' }]);
    expect(grown('upstream')).toBeGreaterThanOrEqual(heldS);
    expect(sum('waitMs')).toBeGreaterThan(0);
    expect(grown('request')).toBeCloseTo(sum('durationMs'), 3);
    expect(grown('upstream')).toBeCloseTo(sum('upstreamMs'), 3);
    // Without the backend, and without waiting for another request.
    expect(grown('gateway')).toBeCloseTo(sum('durationMs') - sum('upstreamMs') - sum('waitMs'), 3);
  });

  it('waits in the queue of SQLite’s writer while another process holds the write lock', async () => {
    const { store } = parsedConfig(stack.config);
    const queued = () => metric(stack.adminUrl, 'oncegate_sqlite_writer_queue');
    const other = new DatabaseSync(join(store.kind === 'sqlite' ? store.path : '', 'records.db'));
    other.exec('BEGIN IMMEDIATE');
    const first = withdraw(stack.url, { key: 'locked-1' });
    // From here on the writer thread tries to begin a transaction with the first payout.
    await until(async () => (await metric(stack.adminUrl, 'oncegate_in_flight')) === 1);
    const second = withdraw(stack.url, { key: 'locked-2' });
    await until(async () => (await queued()) === 1);
    other.close();
    expect([(await first).status, (await second).status]).toEqual([201, 201]);
    expect(await queued()).toBe(0);
  });

  it('has its trace ids in OpenMetrics, for those who prefer that, and in no other text', async () => {
    const [traced, unrecorded] = ['4bf92f3577b34da6a3ce929d0e0e4736', '0af7651916cd43dd8448eb211c80319c'];
    for (const traceparent of [`${unrecorded}-00f067aa0ba902b7-00`, `${traced}-00f067aa0ba902b7-01`]) {
      const headers = { traceparent: `00-${traceparent}` };
      expect((await withdraw(stack.url, { key: traceparent, headers })).status).toBe(201);
    }
    await idle(stack.adminUrl);
    const read = async (headers: Record<string, string>) => {
      const answer = await send(stack.adminUrl, { path: '/metrics', headers });
      return { type: answer.headers['content-type'], text: answer.body.toString() };
    };
    for (const Accept of OPEN_METRICS) {
      const { type, text } = await read({ Accept });
      expect(type, Accept).toBe('application/openmetrics-text; version=1.0.0; charset=utf-8');
      expect(text.endsWith('\n# EOF\n')).toBe(true);
      expect(text).toContain('\n# TYPE oncegate_requests counter\n');
      expect(text).toMatch(/\noncegate_requests_total\{operation="refund",outcome="executed"\} 0\n/);
      expect(text).not.toContain('_total_total');
      expect(text).not.toContain(unrecorded);
      const lines = text.split('\n').filter((line) => line.includes(traced));
      expect(lines.map((line) => line.replace(/\{le="[\d.]+",operation="withdraw".*# /, ' # '))).toEqual(
        ['request', 'upstream'].map((name) =>
          expect.stringMatching(
            `^oncegate_${name}_duration_seconds_bucket # \\{trace_id="${traced}"\\} [\\d.e-]+ [\\d.]+$`,
          ),
        ),
      );
    }
    for (const accept of [
      undefined,
      '*/*',
      'text/plain',
      'text/plain;version=0.0.4;q=0.5,*/*;q=0.1',
      'text/html',
    ]) {
      const { type, text } = await read(accept === undefined ? {} : { accept });
      expect(type).toBe('text/plain; version=0.0.4; charset=utf-8');
      expect(text).toContain('# TYPE oncegate_requests_total counter\n');
      expect(text).not.toContain(traced);
      expect(text).not.toContain('# EOF');
    }
  });

  it('does not add series, with new merchants, keys, paths, methods, operations and bodies', async () => {
    expect((await withdraw(stack.url, { key: 'named' })).status).toBe(201);
    const agent = new http.Agent({ keepAlive: true, maxSockets: 2 });
    const statuses = new Set<number>();
    let next = 0;
    const sender = async () => {
      for (let i = next++; i < UNSEEN; i = next++) statuses.add(await sent(i, agent));
    };
    await Promise.all([sender(), sender()]);
    agent.destroy();
    await rawExchange(stack.port, 'UNSEEN / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n');
    const after = await idle(stack.adminUrl);
    expect(after.value('oncegate_requests_total')).toBeGreaterThan(UNSEEN);
    for (const merchant of [...NAMED, 'other'])
      expect(after.value('oncegate_merchant_requests_total', { merchant }), merchant).toBeGreaterThan(0);
    expect([...statuses]).toEqual(expect.arrayContaining([200, 201, 400, 401, 422]));
    expect(after.series).toEqual(fresh.series);
    const text = JSON.stringify(after.samples);
    for (const word of ['sk_unseen', 'unseen', 'M-77', '0123456789', '/v']) expect(text).not.toContain(word);
  });
});

/** Every kind of request, with names that nobody has sent before. */
async function sent(i: number, agent: http.Agent): Promise<number> {
  const word = `unseen-${i}-${encodeURIComponent(HOSTILE[i % HOSTILE.length] as string)}`;
  const headers = { Authorization: `Bearer ${secretOf(i)}` };
  const json = { ...headers, 'Content-Type': 'application/json' };
  const post = { method: 'POST', path: '/v1/index.php', headers: json, agent };
  const get = (path: string) => ({ path, headers, agent });
  const payout = JSON.stringify(payoutBody(1));
  const kinds = [
    get(`/${word}/${word}?${word}=1`),
    { ...post, headers: { ...json, 'x-service-idempotency': word }, body: payout },
    { ...post, body: JSON.stringify({ action: HOSTILE[i % HOSTILE.length] }) },
    { ...get('/v2/get_balance'), headers: { Authorization: `Bearer sk_${word}` } },
    { ...post, body: JSON.stringify({ action: word }) },
    { ...post, headers: { ...headers, 'Content-Type': word }, body: `{"${word}` },
    get(`/${word}//${word}`),
    { ...get('/v3/echo'), method: METHODS.filter((method) => method !== 'CONNECT')[i % 30] as string },
    get('/v2/get_balance'),
    { ...post, headers: { ...json, 'x-service-idempotency': `${word} \t"` }, body: word.repeat(9) },
    { ...get(`/${word}`), headers: { ...headers, 'X-Request-Id': word, Origin: word, traceparent: word } },
  ];
  return (await send(stack.url, kinds[i % kinds.length])).status;
}

it('what was sent to the backend is counted once, by the class of the answer, and replays and retries of a doubt are not', async () => {
  const { url, adminUrl, sandbox } = await stackForTest();
  const stream = (fault: string) =>
    send(url, { path: '/v3/echo', headers: { ...BEARER, 'X-Sandbox-Fault': fault } });
  for (const _ of ['sent', 'replayed']) await withdraw(url, { key: 'failed', fault: 'status=500' });
  for (const _ of ['sent', 'retried']) await withdraw(url, { key: 'cut', fault: 'execute-then-reset' });
  // A proxy that gives up waiting: the status says nothing of the payout.
  await withdraw(url, { key: 'given-up', fault: 'status=504' });
  // Without a key nothing is in doubt.
  for (const fault of ['status=504', 'status=302']) await withdraw(url, { fault });
  for (const fault of ['status=500', 'reset-before-execute']) await stream(fault);
  await sandbox.close();
  await withdraw(url, { key: 'no-backend' });
  await send(url, { path: '/v3/echo', headers: BEARER });
  const counted = (await idle(adminUrl)).table('oncegate_upstream_responses_total', 'operation', 'class');
  expect(counted).toEqual({
    ...{ 'withdraw 3xx': 1, 'withdraw 5xx': 2, 'withdraw unknown': 2, 'withdraw not_sent': 1 },
    ...{ 'undeclared 5xx': 1, 'undeclared unknown': 1, 'undeclared not_sent': 1 },
  });
});

it('an answer that does not come in time is counted as a doubt by timeout, and adds no series', async () => {
  // The only request: no other one can be late.
  const { url, adminUrl } = await stackForTest({ ...sections, upstream: { responseTimeoutMs: 200 } });
  const before = await scrape(adminUrl);
  expect((await withdraw(url, { key: 'late', fault: 'execute-then-hang' })).status).toBe(504);
  const after = await idle(adminUrl);
  expect(after.table('oncegate_in_doubt_total', 'operation', 'cause')).toEqual({ 'withdraw timeout': 1 });
  expect(after.series).toEqual(before.series);
});

it('merchants that a reload names get series, and those that it no longer names count with all others', async () => {
  const series = [
    ...['oncegate_merchant_requests_total', 'oncegate_merchant_request_duration_seconds_count'],
    'oncegate_merchant_in_doubt_total',
  ];
  const others = { merchant: 'other', outcome: 'executed' };
  const { gateway, config, url, adminUrl } = stack;
  const before = await metric(adminUrl, 'oncegate_merchant_requests_total', others);
  const reload = (merchants: string[]) => gateway.reload(parsedConfig({ ...config, metrics: { merchants } }));
  await reload(['M-BRAVO']);
  for (const secret of ['sk_sandbox_alpha', 'sk_sandbox_bravo'])
    expect((await withdraw(url, { key: 'reloaded', secret })).status).toBe(201);
  const shown = await idle(adminUrl);
  for (const of of series)
    expect(
      new Set(shown.samples.flatMap(({ name, labels }) => (name === of ? labels.merchant : []))),
    ).toEqual(new Set(['M-BRAVO', 'other']));
  const bravo = { merchant: 'M-BRAVO', outcome: 'executed' };
  expect(shown.value('oncegate_merchant_requests_total', bravo)).toBe(1);
  expect(shown.value('oncegate_merchant_requests_total', others)).toBe(before + 1);
  await reload(['M-ALPHA', 'M-BRAVO']);
  expect((await withdraw(url, { key: 'again' })).status).toBe(201);
  const again = await idle(adminUrl);
  const alpha = { merchant: 'M-ALPHA', outcome: 'executed' };
  expect([alpha, bravo].map((labels) => again.value('oncegate_merchant_requests_total', labels))).toEqual([
    1, 1,
  ]);
});

it('secret keys are counted, and so are key files that are accepted or refused', async () => {
  const reloads = (result: string) => metric(stack.adminUrl, 'oncegate_key_reloads_total', { result });
  replaceFile(keyFile, 'merchants: nonsense');
  await until(async () => (await reloads('refused')) === 1);
  expect(await reloads('ok')).toBe(0);
  const kept = await now();
  expect(kept.value('oncegate_secret_keys')).toBe(8 + UNSEEN);
  expect(kept.value('oncegate_merchants_expiring')).toBe(0);
  expect(kept.value('oncegate_secret_key_expires_timestamp_seconds')).toBeUndefined();
  const { checks } = (await send(stack.adminUrl, { path: '/readyz' })).json<{ checks: object[] }>();
  const warnings = ['the newest version was refused: a key that it revokes still works'];
  expect(checks).toContainEqual({
    ...{ name: 'keys', ok: true, detail: expect.stringContaining('refused'), warnings },
  });
  const tomorrow = new Date(Date.now() + 86_400_000).toISOString();
  const item = `{ id: one, dangerouslyPlainSecret: sk_one, expiresAt: ${tomorrow} }`;
  replaceFile(keyFile, `merchants: [{ code: M-1, keys: [${item}] }]`);
  await until(async () => (await reloads('ok')) === 1);
  const shown = await now();
  expect(shown.value('oncegate_secret_keys')).toBe(1);
  expect(shown.value('oncegate_merchants_expiring')).toBe(1);
  expect(shown.value('oncegate_secret_key_expires_timestamp_seconds')).toBe(Date.parse(tomorrow) / 1000);
});
