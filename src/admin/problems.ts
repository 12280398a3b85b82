import type { ServerResponse } from 'node:http';
import type { RequestHandler } from 'express';
import type { ConsoleProblem, ProblemCode, RecordHeadView } from '../console/contract.ts';
import { hasBody } from '../lib/context.ts';

/** Status and title of each code. The contract says what they mean. */
const problems: Record<ProblemCode, [status: number, title: string]> = {
  invalid: [400, 'The request is malformed'],
  not_logged_in: [401, 'There is no session'],
  token_required: [401, 'The admin token is required'],
  wrong_token: [401, 'The token is wrong'],
  not_permitted: [403, 'The token of this session does not permit this'],
  foreign_origin: [403, 'The request comes from another origin'],
  not_found: [404, 'There is nothing at this path'],
  console_off: [404, 'The console is off'],
  absent: [404, 'There is no such record'],
  no_body: [404, 'The record has no stored body'],
  method_not_allowed: [405, 'The path does not have this method'],
  alive: [409, 'The owner of the record is still alive'],
  changed: [409, 'The record is not in doubt any more'],
  too_large: [413, 'The request is too large'],
  not_json: [415, 'The body must be JSON'],
  wrong_host: [421, 'This port does not serve that host'],
  too_many_tries: [429, 'Too many wrong tokens'],
  internal: [500, 'The gateway failed'],
  unreadable: [500, 'The record cannot be read'],
  unavailable: [503, 'The store does not answer'],
};

export interface RefuseOptions {
  /** Sets `Retry-After`. */
  retryAfterMs?: number | undefined;
  /** Sets `Allow`. */
  allow?: string;
  /** The record as it is now. */
  record?: RecordHeadView | undefined;
}

/** The problem document of a code. `detail` is one sentence for a person, without any secret. */
export function problemOf(code: ProblemCode, detail: string, record?: RecordHeadView): ConsoleProblem {
  const [status, title] = problems[code];
  return {
    ...{ type: `urn:oncegate:problem:admin_${code}`, title, status, detail, code },
    ...(record && { record }),
  };
}

/** Answers with a problem, unless an answer has begun. */
export function refuse(
  res: ServerResponse,
  code: ProblemCode,
  detail: string,
  { retryAfterMs, allow, record }: RefuseOptions = {},
): void {
  if (res.headersSent || res.destroyed) return;
  const problem = problemOf(code, detail, record);
  const body = JSON.stringify(problem);
  if (retryAfterMs !== undefined)
    res.setHeader('Retry-After', String(Math.max(1, Math.ceil(retryAfterMs / 1000))));
  if (allow !== undefined) res.setHeader('Allow', allow);
  // Node would parse the rest of an unread body as the next request.
  if (hasBody(res.req) && !res.req.complete) res.shouldKeepAlive = false;
  res.writeHead(problem.status, {
    'Content-Type': 'application/problem+json',
    'Content-Length': Buffer.byteLength(body),
    'Cache-Control': 'no-store',
  });
  res.end(body);
}

/** For every other method of a path. */
export const allowOnly =
  (allow: string): RequestHandler =>
  (_req, res) =>
    refuse(res, 'method_not_allowed', `This path has ${allow} only.`, { allow });
