import type { Completion, Exchange } from '../kernel/exchange.ts';

/** What becomes of the scope. */
export type Decision = 'complete' | 'release' | 'in_doubt';

/** What an operation says about the backend's statuses. */
export interface StatusPolicy {
  /** The backend surely did not execute. */
  release: readonly number[];
  /** A proxy in front of the backend gave up: whether the backend executed is unknown. */
  unknown: readonly number[];
}

/** What the end of an exchange means for the key. The status decides before the size of the response. */
export function decide(exchange: Exchange, { release, unknown }: StatusPolicy): Decision {
  if (exchange.kind === 'not_sent') return 'release';
  if (exchange.kind === 'unknown') return 'in_doubt';
  const status = exchange.kind === 'complete' ? exchange.response.status : exchange.status;
  if (release.includes(status)) return 'release';
  return unknown.includes(status) ? 'in_doubt' : 'complete';
}

/** What the record is completed with. A response that is too large leaves a tombstone. */
export function completionOf(exchange: Exchange): Completion {
  if (exchange.kind === 'complete') return { kind: 'response', response: exchange.response };
  if (exchange.kind === 'oversize') return { kind: 'tombstone', status: exchange.status };
  throw new TypeError(`an exchange that ended ${exchange.kind} has no result`);
}
