import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { isLong, printFigures, seconds } from '../../support/duration.ts';
import { metric } from '../../support/metrics.ts';
import { storeKinds, storeSections } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { ALPHA, request } from '../../support/wire.ts';
import { Flood } from './flood.ts';
import { startInspected } from './heap.ts';
import { openRawBackend } from './raw-backend.ts';

const WARM_KEYS = 1500;
/** With ONCEGATE_ABUSE_SECONDS, as many keys as possible in that time. */
const KEYS = 2500;
const WITHIN_MS = seconds(10) * 1000;
/** If the gateway kept a scope for each key, it would be more. This much is noise of the compiler and of growing tables. */
const BYTES_A_KEY = 64;
const NOISE_BYTES = 512 * 1024;

const payout = '{"action":"withdraw","amount":1,"bank_code":"058","account_number":"0123456789"}';

describe('different keys', () => {
  it.each(storeKinds)(
    'leave nothing behind but their records: %s',
    async (kind) => {
      const backend = await openRawBackend();
      const gateway = await startInspected(backend, await storeSections(kind));
      let keys = 0;
      const next = () =>
        request('POST /v1/index.php', [ALPHA, `x-service-idempotency: many-${++keys}`], payout);
      const part = async (atLeast: number) => {
        const flood = new Flood(gateway.port, { connections: 16, ahead: 4, next });
        const endMs = performance.now() + WITHIN_MS;
        while (flood.answered < atLeast && performance.now() < endMs) await sleep(20);
        const { statuses, answered } = await flood.stop();
        expect(statuses).toEqual({ 201: answered });
        await until(async () => (await metric(gateway.adminUrl, 'oncegate_pending_writes')) === 0);
        return { answered, liveBytes: await gateway.liveBytes() };
      };
      const startedMs = performance.now();
      const first = await part(WARM_KEYS);
      const last = await part(isLong ? Number.POSITIVE_INFINITY : KEYS);
      const grown = last.liveBytes - first.liveBytes;
      const rate = Math.round((1000 * keys) / (performance.now() - startedMs));
      printFigures(`different keys, ${kind}`, { keys, rate, grown });
      expect(backend.requests()).toBe(keys);
      expect(grown, `${last.answered} keys`).toBeLessThan(last.answered * BYTES_A_KEY + NOISE_BYTES);
    },
    30_000 + 2 * WITHIN_MS,
  );
});
