/** A replay names two requests: the one that gets it, and the first one with its key. */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { scopeOf } from '../../../src/idempotency/fingerprint.ts';
import { httpBackend } from '../../support/backend.ts';
import { type TestAnswer, withdraw } from '../../support/client.ts';
import { metric } from '../../support/metrics.ts';
import { expectProblem } from '../../support/problem.ts';
import { openGateway, type Stack, type TestGateway } from '../../support/stack.ts';
import { openStackOn, storeKinds } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { idsOf } from './answers.ts';
import { LOOKUP_TOKEN, lookingUp } from './policies.ts';

const replayed = ({ headers }: TestAnswer) => headers['idempotent-replayed'];

/** A payout with a request id. */
const pay = (url: string, key: string, id: string, fault?: string) =>
  withdraw(url, { key, headers: { 'X-Request-Id': id }, ...(fault === undefined ? {} : { fault }) });

describe.each(storeKinds)('on %s', (kind) => {
  let stack: Stack;
  let second: TestGateway;
  beforeAll(async () => {
    stack = await openStackOn(kind, { idempotency: { maxStoredBytes: 1024 } });
    second = await openGateway(stack.config);
  });
  afterAll(async () => {
    await second?.shutdown();
    await stack?.close();
  });

  it('a replay has its own request id and that of the first request, at each gateway', async () => {
    const key = randomUUID();
    const first = await pay(stack.url, key, 'the-first', 'set-cookie');
    expect(idsOf(first)).toEqual({ own: ['the-first'], first: [] });
    for (const [at, url] of [stack.url, second.url, stack.url].entries()) {
      const again = await pay(url, key, `retry-no-${at}`, 'set-cookie');
      expect(idsOf(again)).toEqual({ own: [`retry-no-${at}`], first: ['the-first'] });
      expect([replayed(again), again.headers['set-cookie']]).toEqual(['true', undefined]);
    }
    expect(stack.sandbox.requests.ofKey(key)).toBe(1);
  });

  it('duplicates that waited, at the same or another gateway, have the id of the executed request', async () => {
    const key = randomUUID();
    const first = pay(stack.url, key, 'the-first', 'delay=60000');
    await until(() => stack.sandbox.requests.ofKey(key) === 1);
    const here = pay(stack.url, key, 'duplicate-here', 'delay=60000');
    const there = [pay(second.url, key, 'duplicate-there'), pay(second.url, key, 'follows-there')];
    for (const [adminUrl, waiting] of [[stack.adminUrl, 1] as const, [second.adminUrl, 2] as const])
      await until(async () => (await metric(adminUrl, 'oncegate_waiting')) === waiting);
    stack.sandbox.endDelays(key);
    expect(idsOf(await first)).toEqual({ own: ['the-first'], first: [] });
    const answers = await Promise.all([here, ...there]);
    expect(answers.map(idsOf)).toEqual([
      { own: ['duplicate-here'], first: ['the-first'] },
      { own: ['duplicate-there'], first: ['the-first'] },
      { own: ['follows-there'], first: ['the-first'] },
    ]);
    expect(answers.map(replayed)).toEqual(['true', 'true', 'true']);
  });

  it('a duplicate that is executed after a release counts as the first request for later ones', async () => {
    const key = randomUUID();
    const released = pay(stack.url, key, 'the-released', 'status=429,delay=60000');
    await until(() => stack.sandbox.requests.ofKey(key) === 1);
    const next = [pay(stack.url, key, 'next-in-line'), pay(stack.url, key, 'last-in-line')];
    await until(async () => (await metric(stack.adminUrl, 'oncegate_waiting')) === 2);
    stack.sandbox.endDelays(key);
    expect(idsOf(await released)).toEqual({ own: ['the-released'], first: [] });
    const executed = (await Promise.all(next)).find((answer) => !replayed(answer));
    const [id] = executed ? idsOf(executed).own : [];
    expect(idsOf(await pay(second.url, key, 'much-later')).first).toEqual([id]);
    for (const answer of await Promise.all(next))
      expect(idsOf(answer).first).toEqual(answer === executed ? [] : [id]);
  });

  it('a response that was too large to store names the first request', async () => {
    const key = randomUUID();
    const first = await pay(stack.url, key, 'the-first', 'huge=5000');
    expect(idsOf(first)).toEqual({ own: ['the-first'], first: [] });
    const again = await pay(second.url, key, 'the-retry');
    expectProblem(again, { status: 409, code: 'response_not_stored' });
    expect(idsOf(again)).toEqual({ own: ['the-retry'], first: ['the-first'] });
  });

  it('a key in doubt names the first request, and so does its replay after it was resolved', async () => {
    const key = randomUUID();
    const first = await pay(stack.url, key, 'the-first', 'execute-then-reset');
    expectProblem(first, { status: 502, code: 'outcome_unknown' });
    expect(idsOf(first)).toEqual({ own: ['the-first'], first: [] });
    const doubtful = await pay(second.url, key, 'in-doubt-yet');
    expectProblem(doubtful, { status: 409, code: 'outcome_unknown' });
    expect(idsOf(doubtful)).toEqual({ own: ['in-doubt-yet'], first: ['the-first'] });
    const resolved = await stack.gateway.desk.answer({
      ...{ kind: 'resolve', scope: scopeOf('M-ALPHA', key), by: 'ada', reason: 'the books show it' },
      ...{ as: 'completed', status: 201, headers: ['X-Request-Id', 'of-the-books', 'X-Kept', '1'], body: '' },
    });
    expect(resolved.kind).toBe('found');
    const replay = await pay(second.url, key, 'the-retry');
    expect([replay.status, replayed(replay), replay.headers['x-kept']]).toEqual([201, 'true', '1']);
    expect(idsOf(replay)).toEqual({ own: ['the-retry'], first: ['the-first'] });
  });
});

it('a key that was looked up names the first request', async () => {
  const stack = await openStackOn('sqlite', lookingUp(), { lookupToken: LOOKUP_TOKEN });
  try {
    const key = randomUUID();
    await pay(stack.url, key, 'the-first', 'execute-then-reset');
    const replay = await until(async () => {
      const answer = await pay(stack.url, key, 'the-retry');
      return replayed(answer) ? answer : undefined;
    });
    expect(idsOf(replay)).toEqual({ own: ['the-retry'], first: ['the-first'] });
  } finally {
    await stack.close();
  }
});

it('replays have no request ids and replay headers of the backend', async () => {
  const url = await httpBackend((_req, res) => {
    const ids = ['X-Request-Id', 'of-the-backend', 'IDEMPOTENT-original-request-id', 'of-the-backend'];
    res
      .writeHead(201, [...ids, 'Idempotent-Replayed', 'true', 'X-Kept', '1', 'Content-Length', '2'])
      .end('ok');
  });
  const stack = await openStackOn('sqlite', { upstream: { url } });
  try {
    const first = await pay(stack.url, 'one-key', 'the-first');
    expect(idsOf(first)).toEqual({ own: ['the-first'], first: [] });
    const again = await pay(stack.url, 'one-key', 'the-retry');
    expect(idsOf(again)).toEqual({ own: ['the-retry'], first: ['the-first'] });
    expect([replayed(again), again.headers['x-kept'], again.body.toString()]).toEqual(['true', '1', 'ok']);
  } finally {
    await stack.close();
  }
});
