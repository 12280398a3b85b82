import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { recordIdOf } from '../../../src/ledger/record-id.ts';
import { createSandbox, type Sandbox } from '../../../src/sandbox/sandbox.ts';
import { isReplay, type TestAnswer, withdraw } from '../../support/client.ts';
import { FAST_START, newFolder } from '../../support/command.ts';
import { type ConfigInput, type MoreConfig, testConfig } from '../../support/config.ts';
import { executionOf } from '../../support/execution.ts';
import { metric } from '../../support/metrics.ts';
import { expectProblem } from '../../support/problem.ts';
import { spawnGateway } from '../../support/spawn.ts';
import { gatewayForTest, openGateway, sandboxForTest, type TestGateway } from '../../support/stack.ts';
import { type StoreKind, storeSections } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { pause } from '../process/gateways.ts';
import { type PausePoint, type PausingGateway, spawnPausingGateway } from './pausing-gateway.ts';
import { holding, LOOKUP_TOKEN, lookingUp, retrying } from './policies.ts';

/** A backend, and gateways on one store. */
class Crowd {
  readonly sandbox: Sandbox;
  readonly #store: MoreConfig;
  readonly #folder = newFolder();
  readonly #opened: TestGateway[] = [];

  static async open(kind: StoreKind): Promise<Crowd> {
    const sandbox = await createSandbox({ port: 0, lookupToken: LOOKUP_TOKEN });
    return new Crowd(sandbox, await storeSections(kind));
  }

  private constructor(sandbox: Sandbox, store: MoreConfig) {
    this.sandbox = sandbox;
    this.#store = store;
  }

  /** For a gateway that will be paused: only the fence, and no time limit, prevents it from sending. */
  get patient(): ConfigInput {
    const times = { responseTimeoutMs: 60_000, queueTimeoutMs: 60_000 };
    return testConfig(this.#folder, this.sandbox.url, {
      ...{ ...this.#store, ...holding, upstream: { maxConnections: 1, ...times } },
    });
  }

  async another(more: MoreConfig): Promise<TestGateway> {
    const opened = await openGateway(testConfig(this.#folder, this.sandbox.url, { ...this.#store, ...more }));
    this.#opened.push(opened);
    return opened;
  }

  async close(): Promise<void> {
    for (const gateway of this.#opened) await gateway.shutdown();
    await this.sandbox.close();
  }
}

/** Retries until this gateway executes the key's request. */
async function untilExecuted({ url }: TestGateway, key: string): Promise<TestAnswer> {
  const executed = await until(async () => {
    const answer = await withdraw(url, { key });
    return answer.status === 201 ? answer : undefined;
  });
  expect(executed.headers['idempotent-replayed']).toBeUndefined();
  return executed;
}

/** An operator releases the key as soon as its owner counts as dead. */
async function release({ gateway: { desk } }: TestGateway, key: string): Promise<void> {
  const scope = recordIdOf('gateway', 'M-ALPHA', key);
  const word = { as: 'released' as const, by: 'ada', reason: 'not in the books' };
  const question = { kind: 'resolve' as const, scope, ...word, execution: await executionOf(desk, scope) };
  await until(async () => (await desk.answer(question)).kind === 'found');
}

/** How the key becomes free, or is executed again, while its owner is paused. */
const ways: [way: string, more: MoreConfig, free: (other: TestGateway, key: string) => Promise<void>][] = [
  ['an operator released it', holding, release],
  ['a lookup released it', lookingUp(), async () => {}],
  ['the policy retry restarted it', retrying, async () => {}],
];

/** Its tests run one after the other, because they pause the same process. The groups wait for leases at the same time. */
const inTurn = { concurrent: false };

/** A gateway that can be paused at this point, for the tests of a group. */
function openPausing(kind: StoreKind, point: PausePoint) {
  let crowd: Crowd;
  let paused: PausingGateway;
  beforeAll(async () => {
    crowd = await Crowd.open(kind);
    paused = await spawnPausingGateway(crowd.patient, point);
  });
  afterAll(() => crowd?.close());
  return () => ({ crowd, paused });
}

function pausedBeforeItSent(kind: StoreKind, point: PausePoint, itsWays: typeof ways) {
  const opened = openPausing(kind, point);

  it.each(itsWays)('sends nothing once %s', inTurn, async (_, more, free) => {
    const { crowd, paused } = opened();
    const { sandbox } = crowd;
    const other = await crowd.another(more);
    const stale = await metric(paused.adminUrl, 'oncegate_stale_total', { write: 'release' });
    const key = randomUUID();
    paused.arm();
    const first = withdraw(paused.url, { key });
    await paused.untilPaused();
    expect(sandbox.requests.ofKey(key)).toBe(0);

    await free(other, key);
    const executed = await untilExecuted(other, key);
    expect(sandbox.requests.ofKey(key)).toBe(1);
    paused.resume();

    expectProblem(await first, { status: 502, code: 'upstream_unreachable' });
    for (const { url } of [paused, other]) {
      const retry = await withdraw(url, { key });
      expect([retry.status, retry.headers['idempotent-replayed']]).toEqual([201, 'true']);
      expect(retry.body).toEqual(executed.body);
    }
    expect([sandbox.requests.ofKey(key), sandbox.ledger.payouts({ key })]).toEqual([1, 1]);
    expect(await metric(paused.adminUrl, 'oncegate_stale_total', { write: 'release' })).toBe(stale + 1);
    // The gateway sends as before. The reset leaves no connection, so the next request has to open one.
    const later = await withdraw(paused.url, { key: randomUUID(), fault: 'execute-then-reset' });
    expectProblem(later, { status: 502, code: 'outcome_unknown' });
  });
}

describe.concurrent.each([
  ['after_start', ways.slice(1)],
  ['before_connect', ways.slice(0, 1)],
] as const)('a gateway that is paused between its start and the first byte (%s)', (point, itsWays) => {
  pausedBeforeItSent('sqlite', point, itsWays);
});

describe.concurrent('a gateway that is paused between its start and the first byte, on Redis', () => {
  const opened = openPausing('redis', 'after_start');

  it('for longer than its lease, sends nothing and frees its key', inTurn, async () => {
    const { crowd, paused } = opened();
    const { sandbox } = crowd;
    const other = await crowd.another(holding);
    const key = randomUUID();
    paused.arm();
    const first = withdraw(paused.url, { key });
    await paused.untilPaused();
    // It waits until the owner counts as dead.
    expectProblem(await withdraw(other.url, { key }), { status: 409, code: 'outcome_unknown' });
    paused.resume();
    expectProblem(await first, { status: 502, code: 'upstream_unreachable' });
    expect(sandbox.requests.ofKey(key)).toBe(0);
    expect((await withdraw(other.url, { key })).status).toBe(201);
    expect(sandbox.ledger.payouts({ key })).toBe(1);
  });
});

describe.concurrent('a gateway that is paused while a request queues', () => {
  it('stores and sends nothing for it, and replays what another one executed', async () => {
    const crowd = await Crowd.open('sqlite');
    const { sandbox } = crowd;
    const [other, paused] = [
      await crowd.another(holding),
      await spawnGateway(crowd.patient, FAST_START, newFolder()),
    ];
    const [busy, key] = [randomUUID(), randomUUID()];
    const first = withdraw(paused.url, { key: busy, fault: 'delay=60000' });
    await until(() => sandbox.requests.ofKey(busy) === 1);
    const queued = withdraw(paused.url, { key });
    await until(async () => (await metric(paused.adminUrl, 'oncegate_upstream_slots_queued')) === 1);
    await pause(paused, other);

    // There is no record of the queued request, so no request has to wait for its lease.
    const executed = await withdraw(other.url, { key, headers: { Prefer: 'wait=0' } });
    expect([executed.status, executed.headers['idempotent-replayed']]).toEqual([201, undefined]);
    sandbox.endDelays(busy);
    await until(() => sandbox.ledger.payouts({ key: busy }) === 1);
    paused.child.kill('SIGCONT');

    expect((await first).status).toBe(201);
    const replay = await queued;
    expect([replay.status, replay.headers['idempotent-replayed']]).toEqual([201, 'true']);
    expect(replay.body).toEqual(executed.body);
    expect([sandbox.requests.ofKey(key), sandbox.ledger.payouts({ key })]).toEqual([1, 1]);
    expect(sandbox.ledger.payouts()).toBe(2);
    await crowd.close();
  });
});

it('a gateway looks up what a killed gateway had sent, by the pass after its start', async () => {
  // Its own time limit must not end the request before it is killed.
  const slow = { ...lookingUp({ releaseAfterMs: 20_000 }), upstream: { responseTimeoutMs: 20_000 } };
  const sandbox = await sandboxForTest({ lookupToken: LOOKUP_TOKEN });
  const config = testConfig(newFolder(), sandbox.url, slow);
  const key = randomUUID();
  const doomed = await spawnGateway(config, FAST_START, newFolder());
  const cut = expect(withdraw(doomed.url, { key, fault: 'delay=60000' })).rejects.toThrow(/hang up|reset/i);
  await until(() => sandbox.requests.ofKey(key) === 1);
  await doomed.end('SIGKILL');
  await cut;
  sandbox.endDelays(key);
  await until(() => sandbox.ledger.payouts({ key }) === 1);

  const { url, adminUrl } = await gatewayForTest(config);
  const byLookup = { as: 'completed', by: 'lookup' };
  await until(async () => (await metric(adminUrl, 'oncegate_resolutions_total', byLookup)) === 1);
  const retry = await withdraw(url, { key });
  expect([retry.status, isReplay(retry)]).toEqual([201, true]);
  const [transaction] = sandbox.ledger.transactions({ key });
  expect(retry.json()).toMatchObject({ data: { transaction_id: transaction?.id } });
  expect([sandbox.ledger.payouts({ key }), sandbox.requests.ofKey(key)]).toEqual([1, 1]);
});
