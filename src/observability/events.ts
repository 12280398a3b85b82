import type { KeyReload } from '../kernel/context.ts';
import type { Logger } from './logger.ts';
import type { Metrics } from './metrics.ts';

/** The part of the engine's `Call` that is logged. */
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

/** Turns the engine's events into metrics and log lines. Satisfies the engine's `EngineObserver`. */
export function engineObserver(metrics: Metrics, logger: Logger) {
  return {
    inDoubt(call: KeyedRequest, cause: 'timeout' | 'connection' | 'status', reason: string) {
      metrics.inDoubt.inc({ operation: call.operation, cause });
      logger.warn({ ...named(call), reason }, 'the outcome of an execution is unknown');
    },
    stale(write: string, call: KeyedRequest) {
      metrics.stale.inc({ write });
      logger.warn({ ...named(call), write }, 'a write was refused: another execution owns the record');
    },
    lateAnswer(call: KeyedRequest, late: object, stored: object) {
      logger.error(
        { ...named(call), late, stored },
        'a late response was not stored: the key has another result',
      );
    },
    sendsAgain(call: KeyedRequest) {
      metrics.sentAgain.inc({ operation: call.operation });
      logger.warn(named(call), 'a request whose outcome is unknown is sent again');
    },
    leaseLost(call: KeyedRequest) {
      metrics.leaseLost.inc();
      logger.warn(named(call), 'a lease lapsed while its owner was alive');
    },
    completeLate(call: KeyedRequest, cause: unknown) {
      metrics.completeLate.inc({ operation: call.operation });
      const reason = cause instanceof Error ? cause.message : 'no answer';
      logger.error({ ...named(call), reason }, 'the response was sent before it was stored');
    },
    completeGivenUp(call: KeyedRequest) {
      logger.error(
        named(call),
        'the response was sent and never stored, and this process ends: the key may be in doubt',
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

/** A resolution; the store's audit record holds it. */
export interface LoggedResolution {
  scope: string;
  by: string;
  reason: string;
  from: { state: string; merchant: string; operation: string };
  to: { as: 'completed' | 'released' };
}

/** @param source whether an operator resolved it, or a lookup */
export function observeResolution(
  metrics: Metrics,
  logger: Logger,
  source: 'operator' | 'lookup',
  { scope, by, reason, from, to }: LoggedResolution,
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

/** Counts a reading of the key file. */
export function countReload(metrics: Metrics, { ok }: KeyReload): void {
  metrics.keyReloads.inc({ result: ok ? 'ok' : 'refused' });
}

/** Logs a reading of the key file. */
export function logReload(logger: Logger, reload: KeyReload): void {
  if (reload.ok) logger.info({ keys: reload.keys }, 'the key file was reloaded');
  else logger.error({ reason: reload.error }, 'the new key file is refused; the old keys stay in force');
}
