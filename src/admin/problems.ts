import type { ServerResponse } from 'node:http';
import type { RequestHandler } from 'express';
import type { ConsoleProblem, ProblemCode } from '../console/contract.ts';
import type { RecordView } from '../doubts/records.ts';
import { documentOf, type ProblemDocument, sendProblem } from '../lib/problem.ts';

/** Status and title of each code. The contract says what they mean. */
const problems: Record<ProblemCode, [status: number, title: string]> = {
  invalid: [400, 'The request is malformed'],
  not_logged_in: [401, 'There is no session'],
  token_required: [401, 'The admin token is required'],
  wrong_token: [401, 'The token is wrong'],
  not_permitted: [403, 'The token does not permit this'],
  off: [403, 'Records are not served here'],
  foreign_origin: [403, 'The request comes from another origin'],
  not_found: [404, 'There is nothing at this path'],
  console_off: [404, 'The console is off'],
  absent: [404, 'There is no such record'],
  no_body: [404, 'The record has no stored body'],
  method_not_allowed: [405, 'The path does not have this method'],
  alive: [409, 'The owner of the record is still alive'],
  changed: [409, 'The record is not in doubt any more'],
  unreadable: [409, 'The record cannot be read'],
  too_large: [413, 'The request is too large'],
  not_json: [415, 'The body must be JSON'],
  wrong_host: [421, 'This port does not serve that host'],
  too_many_tries: [429, 'Too many wrong tokens'],
  internal: [500, 'The gateway failed'],
  unavailable: [503, 'The idempotency store cannot be reached'],
};

interface RefuseOptions {
  /** What the type begins with. Default: admin. */
  of?: 'admin' | 'records';
  /** Sets `Retry-After`. */
  retryAfterMs?: number | undefined;
  /** Sets `Allow`. */
  allow?: string;
  /** The record as it is now. */
  record?: RecordView | undefined;
}

/** The problem of a code. `detail` is one sentence for a person, without any secret. */
export function adminProblem(
  code: ProblemCode,
  detail: string,
  { of = 'admin', retryAfterMs, allow, record }: RefuseOptions = {},
): ProblemDocument {
  const [status, title] = problems[code];
  const problem: ConsoleProblem = {
    ...{ type: `urn:oncegate:problem:${of}_${code}`, title, status, detail, code },
    ...(record && { record }),
  };
  return documentOf(status, problem, {
    ...(retryAfterMs !== undefined && { 'Retry-After': String(Math.max(1, Math.ceil(retryAfterMs / 1000))) }),
    ...(allow !== undefined && { Allow: allow }),
  });
}

/** Answers with a problem, unless an answer has begun. */
export const refuse = (res: ServerResponse, ...problem: Parameters<typeof adminProblem>): void =>
  sendProblem(res, adminProblem(...problem));

/** For every other method of a path. */
export const allowOnly =
  (allow: string): RequestHandler =>
  (_req, res) =>
    refuse(res, 'method_not_allowed', `This path has ${allow} only.`, { allow });
