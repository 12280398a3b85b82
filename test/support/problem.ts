import { expect } from 'vitest';
import type { ProblemCode } from '../../src/lib/problem.ts';

/** An answer of this folder's client or of a raw connection (the body is bytes), or of supertest (the body is parsed). */
interface AnyAnswer {
  status: number;
  headers: Record<string, string | string[] | undefined>;
  body: unknown;
}

export interface ExpectedProblem {
  status: number;
  code: ProblemCode;
  /** Seconds; if undefined, the header must be absent. */
  retryAfter?: number;
  /** The whole challenge; if undefined, the header must be absent. */
  authenticate?: string;
}

const SAME_KEY: ProblemCode[] = [
  ...(['request_timeout', 'rate_limited', 'request_in_flight', 'internal_error'] as const),
  // Nothing was sent.
  ...(['store_unavailable', 'upstream_unreachable', 'overloaded', 'shutting_down'] as const),
];
/** No usable key, or refused whatever the configuration is: nothing was executed under the key. */
const NEW_KEY: ProblemCode[] = [
  ...(['invalid_target', 'method_not_allowed'] as const),
  ...(['idempotency_key_invalid', 'idempotency_key_required'] as const),
];

/** What a program does after this answer. Whatever may follow an execution is for a person. */
export function retryOf(code: ProblemCode): 'same_key' | 'new_key' | 'never' {
  if (SAME_KEY.includes(code)) return 'same_key';
  return NEW_KEY.includes(code) ? 'new_key' : 'never';
}

/** The answer is exactly this problem: status, headers, and every member of the envelope. */
export function expectProblem(answer: AnyAnswer, { status, code, ...expected }: ExpectedProblem): void {
  const linesOf = (name: string) => [answer.headers[name]].flat();
  const [requestId] = linesOf('x-request-id');
  // First, because the body of another answer may be no JSON.
  expect(answer.status).toBe(status);
  const body = Buffer.isBuffer(answer.body) ? JSON.parse(answer.body.toString()) : answer.body;
  expect(body).toEqual({
    success: false,
    type: `urn:oncegate:problem:${code}`,
    title: expect.stringMatching(/\w/),
    status,
    detail: expect.stringMatching(/\w/),
    error: { code, message: body.detail, retry: retryOf(code), request_id: requestId },
  });
  expect(linesOf('x-request-id')).toEqual([expect.stringMatching(/^[\w.-]{8,128}$/)]);
  expect(linesOf('content-type')).toEqual(['application/problem+json']);
  expect(linesOf('cache-control')).toEqual(['no-store']);
  expect(linesOf('retry-after')).toEqual([expected.retryAfter?.toString()]);
  expect(linesOf('www-authenticate')).toEqual([expected.authenticate]);
  expect(answer.headers).not.toHaveProperty('idempotent-replayed');
}
