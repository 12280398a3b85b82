import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { describe, expect, it, onTestFinished } from 'vitest';
import { listen } from '../../../src/gateway/http-server.ts';
import { scopeOf } from '../../../src/idempotency/fingerprint.ts';
import { openBlackhole } from '../../support/blackhole.ts';
import { send, type TestAnswer, withdraw } from '../../support/client.ts';
import type { MoreConfig } from '../../support/config.ts';
import { type HeldBackend, openHeldBackend } from '../../support/held-backend.ts';
import { metric } from '../../support/metrics.ts';
import { expectProblem } from '../../support/problem.ts';
import { startRedis } from '../../support/redis-server.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { onRedis, openStackOn, storeKinds } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { LOOKUP_TOKEN, lookingUp, patient } from './policies.ts';

const overloaded = { status: 503, code: 'overloaded', retryAfter: 1 } as const;
const AUTHORIZATION = { Authorization: 'Bearer sk_sandbox_alpha' };
const isReplay = ({ headers }: TestAnswer) => headers['idempotent-replayed'] === 'true';

/** Uses the global onTestFinished, because these tests run one after the other. */
async function open(opened: Promise<Stack>): Promise<Stack> {
  const stack = await opened;
  onTestFinished(() => stack.close());
  return stack;
}

const queued = ({ adminUrl }: Stack) => metric(adminUrl, 'oncegate_upstream_slots_queued');
const inUse = ({ adminUrl }: Stack) => metric(adminUrl, 'oncegate_upstream_slots_in_use');

const balance = (url: string) => send(url, { path: '/v2/get_balance', headers: AUTHORIZATION });

/** Whether the store has a record for any of these keys. */
async function stored({ gateway }: Stack, keys: readonly string[]): Promise<string[]> {
  const shown = await Promise.all(
    keys.map((key) => gateway.desk.answer({ kind: 'show', scope: scopeOf('M-ALPHA', key) })),
  );
  return keys.filter((_, at) => shown[at]?.kind === 'found');
}

/** Store commands so far that a request with a key can cause. */
async function commands({ adminUrl }: Stack): Promise<number> {
  const names = ['start', 'peek', 'complete', 'release', 'get'];
  const counts = names.map((command) =>
    metric(adminUrl, 'oncegate_store_duration_seconds_count', { command }),
  );
  return (await Promise.all(counts)).reduce((sum, count) => sum + count, 0);
}

/** Resolves when a request that the backend does not answer has the only slot. */
async function takeSlot({ url }: Stack, backend: HeldBackend, key = randomUUID()) {
  const answer = withdraw(url, { key });
  await until(() => backend.requests.includes(key));
  return answer;
}

/** The store's time limit. A busy process may need longer than a shorter one to read an answer that is there. */
const STORE_MS = 1000;

describe('while a store is frozen', () => {
  it('balance reads are served while requests with a key keep arriving', async () => {
    const redis = await startRedis();
    const stack = await open(openStack({ ...onRedis(redis, STORE_MS), upstream: { maxConnections: 2 } }));
    const { url, adminUrl, sandbox } = stack;
    expect((await withdraw(url, { key: randomUUID() })).status).toBe(201);
    const keys: string[] = [];
    const answers: TestAnswer[] = [];
    let ends = false;
    redis.freeze();
    const merchants = Array.from({ length: 16 }, async () => {
      while (!ends) {
        const key = randomUUID();
        keys.push(key);
        answers.push(await withdraw(url, { key }));
      }
    });
    try {
      for (let read = 0; read < 40; read++) expect((await balance(url)).status).toBe(200);
      await until(async () => (await metric(adminUrl, 'oncegate_store_refuses_writes')) === 1);
      // From now on requests with a key take no slots, so these reads do not wait for the store's time limit.
      const startedMs = performance.now();
      for (let read = 0; read < 40; read++) expect((await balance(url)).status).toBe(200);
      expect((performance.now() - startedMs) / 40).toBeLessThan(STORE_MS / 2);
      await until(() => answers.length > 100);
    } finally {
      ends = true;
      redis.thaw();
    }
    await Promise.all(merchants);
    // Requests that were queued when the store froze may have given up.
    const unavailable = { ...overloaded, code: 'store_unavailable' } as const;
    for (const answer of answers.filter(({ status }) => status !== 201))
      expectProblem(answer, answer.body.includes('overloaded') ? overloaded : unavailable);
    expect(answers.some(({ body }) => body.includes('store_unavailable'))).toBe(true);
    // Requests that were answered after the thaw may be payouts; each is executed once.
    const paid = keys.filter((key) => sandbox.requests.ofKey(key) > 0);
    expect(paid).toHaveLength(answers.filter(({ status }) => status === 201).length);
    await until(async () => (await withdraw(url, { key: keys[0] as string })).status === 201);
    await until(async () => (await metric(adminUrl, 'oncegate_store_refuses_writes')) === 0);
    expect(sandbox.ledger.duplicateKeys()).toEqual([]);
    expect(await inUse(stack)).toBe(0);
  });

  it('balance reads do not wait behind requests with a key that were queued when it froze', async () => {
    const [redis, backend] = [await startRedis(), await openHeldBackend()];
    const upstream = {
      url: backend.url,
      maxConnections: 2,
      queueTimeoutMs: 20_000,
      responseTimeoutMs: 25_000,
    };
    const stack = await open(openStack({ ...onRedis(redis, STORE_MS), upstream }));
    const first = [takeSlot(stack, backend), takeSlot(stack, backend)];
    await until(() => backend.requests.length === 2);
    const waiting = Array.from({ length: 100 }, () => withdraw(stack.url, { key: randomUUID() }));
    await until(async () => (await queued(stack)) === 100);
    redis.freeze();
    try {
      backend.answerAll();
      const startedMs = performance.now();
      expect((await balance(stack.url)).status).toBe(201);
      // One after the other, their starts would take 50 s: the store's time limit for each two of them.
      expect(performance.now() - startedMs).toBeLessThan(8 * STORE_MS);
    } finally {
      redis.thaw();
    }
    for (const answer of await Promise.all(first)) expect(answer.status).toBe(201);
    for (const { status } of await Promise.all(waiting)) expect([201, 503]).toContain(status);
  });
});

describe.each(storeKinds)('on %s, while all slots are taken', (kind) => {
  const small = { maxConnections: 1, queueTimeoutMs: 20_000 };

  it('lookups work', async () => {
    const policy = lookingUp({ firstAfterMs: 60_000, maxPauseMs: 60_000 }, 5000);
    const upstream = { ...policy.upstream, ...small };
    const stack = await open(openStackOn(kind, { ...policy, upstream }, { lookupToken: LOOKUP_TOKEN }));
    const { url, sandbox } = stack;
    const [key, holding] = [randomUUID(), randomUUID()];
    expect((await withdraw(url, { key, fault: 'execute-then-reset' })).status).toBe(502);
    const holder = withdraw(url, { key: holding, fault: 'delay=60000' });
    await until(() => sandbox.requests.ofKey(holding) === 1);
    const replay = await withdraw(url, { key });
    expect([replay.status, isReplay(replay)]).toEqual([201, true]);
    expect(sandbox.ledger.payouts({ key: holding })).toBe(0);
    expect(sandbox.ledger.payouts({ key })).toBe(1);
    sandbox.endDelays(holding);
    expect((await holder).status).toBe(201);
  });

  it('replays, conflicts and duplicates are answered, and streams pass through', async () => {
    const upstream = { ...small, maxQueued: 0, responseTimeoutMs: 20_000 };
    const stack = await open(openStackOn(kind, { upstream, idempotency: { maxStoredBytes: 2048 } }));
    const { url, sandbox } = stack;
    const [completed, tombstone, doubtful, held] = [1, 2, 3, 4].map(() => randomUUID()) as [
      ...[string, string, string, string],
    ];
    const paid = await withdraw(url, { key: completed });
    expect((await withdraw(url, { key: tombstone, fault: 'huge=100000' })).status).toBe(201);
    expect((await withdraw(url, { key: doubtful, fault: 'execute-then-reset' })).status).toBe(502);
    const first = withdraw(url, { key: held, fault: 'delay=60000' });
    await until(() => sandbox.requests.ofKey(held) === 1);
    const duplicates = [1, 2, 3].map(() => withdraw(url, { key: held }));

    const replay = await withdraw(url, { key: completed });
    expect([replay.status, isReplay(replay), replay.body]).toEqual([201, true, paid.body]);
    const conflict = { status: 422, code: 'idempotency_key_reused' } as const;
    expectProblem(await withdraw(url, { key: completed, amount: 11 }), conflict);
    expectProblem(await withdraw(url, { key: held, amount: 11 }), conflict);
    const lost = { status: 409, code: 'response_not_stored' } as const;
    expectProblem(await withdraw(url, { key: tombstone }), lost);
    expectProblem(await withdraw(url, { key: doubtful }), { status: 409, code: 'outcome_unknown' });
    expectProblem(await withdraw(url, { key: held, headers: { Prefer: 'wait=0' } }), {
      ...{ status: 409, code: 'request_in_flight', retryAfter: 1 },
    });
    expect((await send(url, { path: '/v3/echo', headers: AUTHORIZATION })).status).toBe(200);
    // A new request needs a slot.
    expectProblem(await withdraw(url, { key: randomUUID() }), overloaded);
    expect(sandbox.ledger.payouts({ key: held })).toBe(0);

    sandbox.endDelays(held);
    for (const answer of await Promise.all([first, ...duplicates])) {
      expect(answer.status).toBe(201);
      expect(answer.body).toEqual((await first).body);
    }
    expect(sandbox.requests.ofKey(held)).toBe(1);
  });

  it('if the queue is full, requests with and without a key get 503 overloaded at once, and nothing is stored', async () => {
    const backend = await openHeldBackend();
    const upstream = { ...small, url: backend.url, maxQueued: 2, responseTimeoutMs: 20_000 };
    const stack = await open(openStackOn(kind, { upstream }));
    const first = takeSlot(stack, backend);
    await until(() => backend.requests.length === 1);
    const waiting = [withdraw(stack.url, { key: randomUUID() }), balance(stack.url)];
    await until(async () => (await queued(stack)) === 2);

    const refused = [1, 2, 3].map(() => randomUUID());
    for (const key of refused) expectProblem(await withdraw(stack.url, { key }), overloaded);
    expectProblem(await withdraw(stack.url), overloaded);
    expectProblem(await balance(stack.url), overloaded);
    expect(await stored(stack, refused)).toEqual([]);
    expect(backend.requests).toHaveLength(1);

    backend.answerAll();
    for (const answer of await Promise.all([first, ...waiting])) expect(answer.status).toBe(201);
    expect(backend.requests).toHaveLength(3);
    for (const key of refused) expect((await withdraw(stack.url, { key })).status).toBe(201);
    expect(backend.connections).toBe(1);
    expect([await inUse(stack), await queued(stack)]).toEqual([0, 0]);
  });

  it('a thousand duplicates of one key are one execution, and need only a few store commands', async () => {
    const backend = await openHeldBackend();
    const stack = await open(
      openStackOn(kind, {
        ...patient,
        upstream: { ...small, url: backend.url, responseTimeoutMs: 40_000 },
      }),
    );
    const [key, before] = [randomUUID(), await commands(stack)];
    const first = withdraw(stack.url, { key });
    await until(() => backend.requests.length === 1);
    const duplicates = Array.from({ length: 999 }, () => withdraw(stack.url, { key }));
    await until(async () => (await metric(stack.adminUrl, 'oncegate_waiting')) === 999, 25_000);
    backend.answerAll();
    const answers = await Promise.all([first, ...duplicates]);
    expect(new Set(answers.map(({ status, body }) => `${status} ${body}`))).toHaveLength(1);
    expect(answers[0]?.status).toBe(201);
    expect(answers.filter(isReplay)).toHaveLength(999);
    expect(backend.requests).toEqual([key]);
    // One start and one complete.
    expect((await commands(stack)) - before).toBe(2);
  });
});

describe.each(storeKinds)('on %s, 400 requests that give up their places', (kind) => {
  const QUEUE_TIMEOUT_MS = 700;
  const more: MoreConfig['upstream'] = { queueTimeoutMs: QUEUE_TIMEOUT_MS, maxQueued: 400 };

  it('while the backend does not answer, are never sent, and nothing is stored for them', async () => {
    const backend = await openHeldBackend();
    const upstream = { ...more, url: backend.url, maxConnections: 2, responseTimeoutMs: 25_000 };
    const stack = await open(openStackOn(kind, { upstream }));
    const holders = [takeSlot(stack, backend), takeSlot(stack, backend)];
    await until(() => backend.requests.length === 2);
    const keys: string[] = Array.from({ length: 400 }, () => randomUUID());
    const answers = await Promise.all(keys.map((key) => withdraw(stack.url, { key })));
    for (const answer of answers) expectProblem(answer, overloaded);
    expect(await stored(stack, keys)).toEqual([]);

    backend.answerAll();
    for (const answer of await Promise.all(holders)) expect(answer.status).toBe(201);
    await until(async () => (await inUse(stack)) === 0);
    // This request is sent after all requests that the gateway might still have sent.
    for (let i = 0; i < 4; i++) expect((await balance(stack.url)).status).toBe(201);
    expect(backend.requests.filter((key) => keys.includes(key))).toEqual([]);
    expect([backend.requests.length, backend.connections]).toEqual([6, 2]);
    expect(await queued(stack)).toBe(0);
    expect(await stored(stack, keys)).toEqual([]);
  });

  it('while no connection to the backend can be opened, cause no connections when it is back', async () => {
    const hole = await openBlackhole();
    const upstream = { ...more, url: `http://127.0.0.1:${hole.port}`, maxConnections: 2 };
    const stack = await open(openStackOn(kind, { upstream: { ...upstream, connectTimeoutMs: 400 } }));
    const keys: string[] = Array.from({ length: 400 }, () => randomUUID());
    const answers = await Promise.all(keys.map((key) => withdraw(stack.url, { key })));
    // Requests that got a slot could not connect; the others gave up waiting.
    const unreachable = answers.filter(({ status }) => status === 502);
    for (const answer of unreachable) expectProblem(answer, { status: 502, code: 'upstream_unreachable' });
    for (const answer of answers.filter(({ status }) => status !== 502)) expectProblem(answer, overloaded);
    expect(unreachable.length).toBeGreaterThan(0);
    expect(unreachable.length).toBeLessThan(50);
    await until(async () => (await stored(stack, keys)).length === 0);
    await hole[Symbol.asyncDispose]();

    const [seen, connections] = [[] as string[], { count: 0 }];
    const server = createServer((req, res) => {
      seen.push(String(req.headers['x-service-idempotency']));
      req.resume().once('end', () => res.writeHead(201).end('{}'));
    }).on('connection', () => connections.count++);
    await listen(server, '127.0.0.1', hole.port);
    onTestFinished(() => void server.close());
    const [one, other] = [randomUUID(), randomUUID()];
    for (const key of [one, other]) expect((await withdraw(stack.url, { key })).status).toBe(201);
    expect(seen).toEqual([one, other]);
    expect(connections.count).toBe(1);
    // Their keys are still unused.
    expect((await withdraw(stack.url, { key: keys[0] as string })).status).toBe(201);
    expect(seen).toEqual([one, other, keys[0]]);
  });
});
