import { expect, it, onTestFinished } from 'vitest';
import { RateLimiter } from '../../src/gateway/rate-limiter.ts';
import { openRedis } from '../../src/ledger/open-store.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { storeOptions } from '../../src/store/options.ts';
import { startTopology } from '../faults/chaos/topology.ts';

it('two gateways on a cluster share the limits of merchants, whichever master counts', async () => {
  const topology = await startTopology('cluster', '');
  onTestFinished(() => topology.stop());
  const store = storeOptions.parse(topology.config.store);
  const fallbacks: unknown[] = [];
  const limiters: RateLimiter[] = [];
  for (let i = 0; i < 2; i++) {
    const limiter = new RateLimiter({
      ...{ clock: systemClock, redis: await openRedis(store, 5000), prefix: 'test' },
      onShared: (isShared, reason) => fallbacks.push([isShared, reason]),
    });
    onTestFinished(() => limiter.close());
    limiters.push(limiter);
  }
  const rate = { requests: 3, windowMs: 3_600_000, burst: undefined };
  expect(store).toMatchObject({ cluster: expect.anything() });
  for (const merchant of ['M-1', 'M-2', 'M-3', 'M-4', 'M-5']) {
    const waits = await Promise.all(
      [...limiters, ...limiters, ...limiters].map((limiter) => limiter.take(merchant, rate)),
    );
    expect(fallbacks, JSON.stringify(waits)).toEqual([]);
    expect(
      waits.filter((waitMs) => waitMs === undefined),
      merchant,
    ).toHaveLength(3);
  }
  expect(fallbacks).toEqual([]);
});
