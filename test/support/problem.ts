import { expect } from 'vitest';
import type { ProblemCode } from '../../src/kernel/problem.ts';

/** An answer of this folder's client (the body is bytes) or of supertest (the body is parsed). */
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

/** The answer is exactly this problem: status, headers, and every member of the envelope. */
export function expectProblem(answer: AnyAnswer, { status, code, ...expected }: ExpectedProblem): void {
  const { headers } = answer;
  const body = Buffer.isBuffer(answer.body) ? JSON.parse(answer.body.toString()) : answer.body;
  expect({ status: answer.status, body }).toEqual({
    status,
    body: {
      success: false,
      type: `urn:oncegate:problem:${code}`,
      title: expect.stringMatching(/\w/),
      status,
      detail: expect.stringMatching(/\w/),
      error: { code, message: body.detail, request_id: headers['x-request-id'] },
    },
  });
  expect(headers['x-request-id']).toMatch(/^[\w.-]{8,128}$/);
  expect(headers['content-type']).toBe('application/problem+json');
  expect(headers['cache-control']).toBe('no-store');
  expect(headers['retry-after']).toBe(expected.retryAfter?.toString());
  expect(headers['www-authenticate']).toBe(expected.authenticate);
  expect(headers).not.toHaveProperty('idempotent-replayed');
}
