import type { Logger } from './logger.ts';
import type { Metrics } from './metrics.ts';

/** What is told of a request with a key; the engine's `Call` has it. */
interface KeyedRequest {
  scope: string;
  merchant: string;
  operation: string;
}

const named = ({ scope, merchant, operation }: KeyedRequest) => ({
  scope: scope.slice(0, 16),
  merchant,
  operation,
});

/** Turns what the engine tells into metrics and log lines. Satisfies the engine's `EngineObserver`. */
export function engineObserver(metrics: Metrics, logger: Logger) {
  return {
    inDoubt(call: KeyedRequest, { reason, timedOut }: { reason: string; timedOut: boolean }) {
      metrics.inDoubt.inc({ operation: call.operation, cause: timedOut ? 'timeout' : 'connection' });
      logger.warn({ ...named(call), reason }, 'the outcome of an execution is unknown');
    },
    stale(write: string, call: KeyedRequest) {
      metrics.stale.inc({ write });
      logger.warn({ ...named(call), write }, 'a write was refused: the claim had been taken over');
    },
    tookOver(call: KeyedRequest) {
      metrics.takeovers.inc();
      logger.info(named(call), 'a claim was taken over from an owner who had not begun');
    },
    lateAnswer(call: KeyedRequest, late: object, stands: object) {
      logger.error({ ...named(call), late, stands }, 'a late answer was not stored: something else stands');
    },
    sendsAgain(call: KeyedRequest) {
      metrics.sentAgain.inc({ operation: call.operation });
      logger.warn(named(call), 'a request whose outcome is unknown is sent again');
    },
    leaseLost(call: KeyedRequest) {
      metrics.leaseLost.inc();
      logger.warn(named(call), 'a lease had lapsed while its owner lived');
    },
    settleLate(call: KeyedRequest, cause: unknown) {
      metrics.settleLate.inc({ operation: call.operation });
      const reason = cause instanceof Error ? cause.message : 'no answer';
      logger.error({ ...named(call), reason }, 'a result is not stored yet; the merchant was answered');
    },
    settleGivenUp(call: KeyedRequest) {
      logger.error(
        named(call),
        'a result was not stored in time, and this process ends: the key may be in doubt',
      );
    },
  };
}

const conflicts: Record<string, string> = {
  in_flight: 'in_flight',
  mismatch: 'mismatch',
  in_doubt: 'in_doubt',
  tombstone: 'not_stored',
};

/** Somebody's word on what became of a scope; the store's audit record has it. */
export interface ToldResolution {
  scope: string;
  by: string;
  reason: string;
  from: { state: string; merchant: string; operation: string };
  to: { as: 'settled' | 'released' };
}

/** @param source whether a person resolved it, or the gateway's own question to the backend */
export function observeResolution(
  metrics: Metrics,
  logger: Logger,
  source: 'operator' | 'lookup',
  { scope, by, reason, from, to }: ToldResolution,
): void {
  metrics.resolutions.inc({ as: to.as, by: source });
  const { state, merchant, operation } = from;
  const fields = { ...named({ scope, merchant, operation }), by, reason, from: state, to: to.as };
  logger.info(fields, 'a key in doubt was resolved');
}

/** Counts hits and conflicts by the engine's result. */
export function observeHandled(metrics: Metrics, operation: string, result: string): void {
  if (result === 'replayed') metrics.hits.inc({ operation });
  const kind = conflicts[result];
  if (kind) metrics.conflicts.inc({ operation, kind });
}
