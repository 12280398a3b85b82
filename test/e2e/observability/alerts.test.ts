import { describe, expect, it, type TestContext } from 'vitest';
import { backendIsSlow, backendStops, collectorIsAway } from './alerts/backend.ts';
import { COUNTED, gatewayDies, storeIsAway } from './alerts/doubts.ts';
import { slotsAreFull, tooManyAtOnce } from './alerts/overload.ts';
import { keysAndCertificatesEnd, wronglyConfigured } from './alerts/settings.ts';
import { DISK, diskFills, ownerIsPaused, replicasFallBehind } from './alerts/store.ts';
import { ALERTS, provoked, type Shared, share, Watch } from './alerts/watch.ts';

/** Tests that share a Prometheus, because none of them causes what another one waits for. */
const groups: { thresholds?: Record<string, string>; tests: Record<string, Provocation> }[] = [
  {
    tests: {
      'after a gateway was killed in the middle of a payout': gatewayDies,
      'while slots are full': slotsAreFull,
      'while the backend is slow': backendIsSlow,
    },
  },
  {
    thresholds: COUNTED,
    tests: {
      'while Redis is away, and while it is unsafe': storeIsAway,
      'while the backend is stopped': backendStops,
    },
  },
  {
    thresholds: DISK,
    tests: {
      'while too many requests and connections are open': tooManyAtOnce,
      'while keys and certificates end': keysAndCertificatesEnd,
      'while gateways have a wrong configuration': wronglyConfigured,
      'after a gateway was paused': ownerIsPaused,
      'while replicas fall behind, and after a clock was stepped': replicasFallBehind,
      'while the disk fills': diskFills,
      'while the collector of traces is away': collectorIsAway,
    },
  },
];

type Provocation = (watch: Watch, context: TestContext) => Promise<void>;

const TIMEOUT_MS = 400_000;

describe.concurrent('the alerts of a real Prometheus fire and clear', () => {
  for (const { thresholds, tests } of groups) {
    let shared: Promise<Shared> | undefined;
    for (const [title, provoke] of Object.entries(tests))
      it(
        title,
        async (context) => {
          shared ??= share(thresholds);
          const watch = new Watch(await shared);
          try {
            await provoke(watch, context);
          } finally {
            watch.close();
          }
        },
        TIMEOUT_MS,
      );
  }
});

it('every alert was provoked', () => {
  expect(ALERTS.filter((alert) => !provoked.has(alert))).toEqual([]);
});
