import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { FoundRecord, Overview, Series, SeriesPoint } from '../../../src/admin/console/contract.ts';
import { withdraw } from '../../support/client.ts';
import { consoleOptions, loggedIn, type TestBrowser } from '../../support/console.ts';
import { type SpawnedGateway, spawnGateway } from '../../support/spawn.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { until } from '../../support/until.ts';

let stack: Stack;
let workers: SpawnedGateway;
beforeAll(async () => {
  stack = await openStack({ admin: consoleOptions });
  workers = await spawnGateway({ ...stack.config, workers: 2 });
});
afterAll(async () => {
  await workers.end();
  await stack.close();
});

/** Points until one satisfies the condition. Follows the series as the page does. */
async function untilPoint(
  browser: TestBrowser,
  isWanted: (points: readonly SeriesPoint[]) => boolean,
): Promise<SeriesPoint[]> {
  let cursor = '';
  let seen: SeriesPoint[] = [];
  await until(async () => {
    const next = await browser.api<Series>(`series${cursor && `?since=${cursor}`}`);
    seen = next.replaces ? next.points : [...seen, ...next.points];
    expect(next.replaces).toBe(cursor === '');
    cursor = next.cursor;
    return isWanted(seen);
  }, 20_000);
  return seen;
}

/** Requests after the first point. The time between two points is not exactly that of a sample. */
const countOf = (points: readonly SeriesPoint[], group: keyof SeriesPoint['perSecond']) =>
  points.slice(1).reduce((sum, { perSecond, atMs }, i) => {
    const before = points[i]?.atMs ?? Number.NaN;
    return sum + (perSecond[group] * (atMs - before)) / 1000;
  }, 0);

describe.concurrent.each([
  ['one process', () => ({ url: stack.url, adminUrl: stack.adminUrl })],
  ['two workers', () => workers],
])('the charts of a gateway with %s', (_, gateway) => {
  it('show what becomes of requests, once each', async () => {
    const { url, adminUrl } = gateway();
    const browser = await loggedIn(adminUrl);
    // A point needs a sample before.
    await untilPoint(browser, (points) => points.length > 0);
    const keys = Array.from({ length: 10 }, () => randomUUID());
    for (const key of keys) for (const _twice of [1, 2]) await withdraw(url, { key });
    for (const _ of keys) await withdraw(url, { key: randomUUID(), secret: 'sk_unknown' });
    const groups = ['executed', 'replayed', 'refused'] as const;
    // A busy worker may tell its part later than the others.
    const isCounted = (seen: readonly SeriesPoint[]) =>
      seen.at(-1)?.inFlight === 0 && groups.every((group) => countOf(seen, group) > keys.length - 0.5);
    const points = await untilPoint(browser, isCounted);
    for (const group of groups) expect(Math.round(countOf(points, group)), group).toBe(keys.length);
    const busy = points.find(({ upstream }) => upstream !== null);
    expect(busy?.gateway?.p50Ms).toBeGreaterThan(0);
    expect(busy?.gateway?.p99Ms).toBeGreaterThanOrEqual(busy?.gateway?.p50Ms ?? Number.NaN);
    expect(busy?.upstream?.p95Ms).toBeGreaterThan(0);
    // A sample may fall into the middle of a request. All have ended when the last one was counted.
    expect(points.at(-1)).toMatchObject({ inFlight: 0, executing: 0, waiting: 0 });
  });
});

it('with workers, the overview counts them, and a look-up and a resolution reach one of them', async () => {
  const browser = await loggedIn(workers.adminUrl);
  // A worker that has no processor for a second counts as silent.
  const overview = await until(async () => {
    const seen = await browser.api<Overview>('overview');
    return seen.state === 'ok' ? seen : undefined;
  });
  expect(overview.workers).toBe(2);
  expect(overview.parts.find(({ name }) => name === 'workers')).toMatchObject({
    state: 'ok',
    detail: '2 of 2 answer',
  });
  const key = randomUUID();
  expect((await withdraw(workers.url, { key, fault: 'execute-then-reset' })).status).toBe(502);
  const { scope, record } = await browser.api<FoundRecord>('records/find', {
    json: { merchant: 'M-ALPHA', key },
  });
  const json = { as: 'completed', execution: record?.execution, reason: 'books', status: 201 };
  const after = await browser.api<FoundRecord>(`records/${scope}/resolve`, { json });
  expect(after.record?.state).toBe('completed');
  expect((await withdraw(workers.url, { key })).headers['idempotent-replayed']).toBe('true');
  // The session is the primary's, and no worker's.
  expect((await browser.request('session')).status).toBe(200);
});
