import type { Completion, Exchange } from '../kernel/exchange.ts';

/** What becomes of the key. */
export type Decision = 'complete' | 'release' | 'in_doubt';

/** Statuses with a special meaning, from an operation's configuration. */
export interface StatusPolicy {
  /** With these the backend surely did not execute. */
  release: readonly number[];
  /** With these a proxy in front of the backend gave up waiting: the backend may have executed. */
  unknown: readonly number[];
}

/**
 * Decides what becomes of the key, by how the exchange with the backend ended. The status decides before the size, and what
 * a handler has said decides before the status.
 */
export function decide(exchange: Exchange, { release, unknown }: StatusPolicy): Decision {
  if (exchange.kind === 'not_sent') return 'release';
  if (exchange.kind === 'unknown' || exchange.said === 'unknown') return 'in_doubt';
  if (exchange.said === 'not_executed') return 'release';
  const status = exchange.kind === 'complete' ? exchange.response.status : exchange.status;
  if (release.includes(status)) return 'release';
  return unknown.includes(status) ? 'in_doubt' : 'complete';
}

/** What to complete the record with. A response that is too large to store leaves a tombstone. */
export function completionOf(exchange: Exchange): Completion {
  if (exchange.kind === 'complete') return { kind: 'response', response: exchange.response };
  if (exchange.kind === 'oversize') return { kind: 'tombstone', status: exchange.status };
  throw new TypeError(`an exchange of kind ${exchange.kind} cannot complete a record`);
}
