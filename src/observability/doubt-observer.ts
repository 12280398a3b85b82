import { type LoggedResolution, observeResolution } from './engine-observer.ts';
import type { Logger } from './logger.ts';
import type { Metrics } from './metrics.ts';

interface KeyInDoubt {
  scope: string;
  merchant: string;
  operation: string;
}

/** Turns the lookups' events into metrics and log lines. Satisfies the idempotency room's `DoubtObserver`. */
export function doubtObserver(metrics: Metrics, logger: Logger) {
  return {
    lookedUp(operation: string, result: 'completed' | 'released' | 'unknown' | 'failed') {
      metrics.lookups.inc({ operation, result });
    },
    resolved(scope: string, resolution: Omit<LoggedResolution, 'scope'>) {
      observeResolution(metrics, logger, 'lookup', { scope, ...resolution });
    },
    undecided({ scope, merchant, operation }: KeyInDoubt, said: string, times: number) {
      const fields = { scope: scope.slice(0, 16), merchant, operation, said, times };
      // Once for each key is enough to see that a lookup is wrong.
      logger[times === 1 ? 'warn' : 'debug'](fields, 'a lookup did not decide a key in doubt');
    },
  };
}
