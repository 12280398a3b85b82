import { createHash } from 'node:crypto';
import type { OperationIdempotency } from '../lib/context.ts';
import type { Completion, Exchange } from '../lib/exchange.ts';
import { executedBehind } from '../lib/problem.ts';
import type { IdempotencyRecord } from '../store/types.ts';

/** What becomes of the key. */
export type Decision = 'complete' | 'release' | 'in_doubt';

/** Statuses with a special meaning, from an operation's configuration. */
export type StatusPolicy = Pick<OperationIdempotency, 'release' | 'unknown'>;

/** What becomes of the key, by what another oncegate behind this one says. */
const BEHIND = { no: 'release', perhaps: 'in_doubt', yes: 'complete' } as const;

/** The status of the response; 0 if there is none. */
export function statusOf(exchange: Exchange): number {
  if (exchange.kind === 'complete') return exchange.response.status;
  return exchange.kind === 'oversize' ? exchange.status : 0;
}

/**
 * Decides what becomes of the key, by how the exchange with the backend ended. What a handler, or
 * another oncegate behind this one, has said outranks the status; the status outranks the size.
 */
export function decide(exchange: Exchange, { release, unknown }: StatusPolicy): Decision {
  if (exchange.kind === 'not_sent') return 'release';
  if (exchange.kind === 'unknown' || exchange.said === 'unknown') return 'in_doubt';
  if (exchange.said === 'not_executed') return 'release';
  const behind = exchange.kind === 'complete' ? executedBehind(exchange.response) : undefined;
  // A handler that passes on such an answer may have done something before it asked the other gateway.
  if (behind && !(behind === 'no' && exchange.said)) return BEHIND[behind];
  const status = statusOf(exchange);
  if (release.includes(status)) return 'release';
  return unknown.includes(status) ? 'in_doubt' : 'complete';
}

/** What to complete the record with. A response that is too large to store leaves a tombstone. */
export function completionOf(exchange: Exchange): Completion {
  if (exchange.kind === 'complete') return { kind: 'response', response: exchange.response };
  if (exchange.kind === 'oversize') return { kind: 'tombstone', status: exchange.status };
  throw new TypeError(`an exchange of kind ${exchange.kind} cannot complete a record`);
}

/** Statuses with which an idempotent backend says that the first request still runs, or that this one was not admitted. */
const NOT_OF_THE_FIRST = [409, 425, 401, 429];

/**
 * After a restart nothing is released, because the first request may have been executed even if the second was not. For the
 * same reason an answer that does not say what the first request did, which may still run, does not complete the key.
 */
export function decideFor(statuses: StatusPolicy, exchange: Exchange, again: boolean): Decision {
  const decision = decide(exchange, statuses);
  if (!again) return decision;
  const isExecuted = exchange.kind === 'complete' && executedBehind(exchange.response) === 'yes';
  const saysNothing = NOT_OF_THE_FIRST.includes(statusOf(exchange)) && !isExecuted;
  return decision === 'release' || saysNothing ? 'in_doubt' : decision;
}

/** Why it is unknown whether the backend executed, for people. May be longer than a record holds. */
export function causeOf(exchange: Exchange): string {
  if (exchange.kind === 'unknown' || exchange.kind === 'not_sent') return exchange.reason;
  return exchange.said === 'unknown' ? 'the handler said so' : `status ${statusOf(exchange)}`;
}

/** A result for the log: enough to distinguish two results, and nothing of their content. */
export interface AnswerDigest {
  state: IdempotencyRecord['state'] | 'absent' | 'unreadable';
  status?: number;
  bodyBytes?: number;
  /** The first 16 hexadecimal digits of the digest. */
  bodySha256?: string;
}

/** @param record what the store holds for the key */
export function digestOf(record: Pick<IdempotencyRecord, 'state' | 'completion'> | undefined): AnswerDigest {
  if (!record?.completion) return { state: record?.state ?? 'absent' };
  const { state, completion } = record;
  if (completion.kind === 'tombstone') return { state, status: completion.status };
  const { status, body } = completion.response;
  const bodySha256 = createHash('sha256').update(body).digest('hex').slice(0, 16);
  return { state, status, bodyBytes: body.length, bodySha256 };
}
