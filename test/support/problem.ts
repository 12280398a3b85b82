import { expect } from 'vitest';
import { problemsIn } from '../../scripts/generate/answers-table.ts';
import type { ProblemCode } from '../../src/lib/problem-table.ts';
import { read } from './repository.ts';

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

let documented: ReturnType<typeof problemsIn> | undefined;

/** What a program does after this answer, as config/openapi.yaml says. */
export function retryOf(code: ProblemCode): string | undefined {
  documented ??= problemsIn(read('config/openapi.yaml'));
  return documented.find((one) => one.code === code)?.retry;
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
