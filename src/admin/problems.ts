import type { ServerResponse } from 'node:http';
import type { RequestHandler } from 'express';
import type { ConsoleProblem } from '../console/contract.ts';
import type { RecordView } from '../doubts/record-view.ts';
import { documentOf, type ProblemDocument, sendProblem } from '../lib/problem.ts';
import { type AdminProblemCode, adminProblems } from '../lib/problem-table.ts';

interface RefuseOptions {
  /** The first word of the problem's type. Default: admin. */
  of?: 'admin' | 'records';
  /** Sets `Retry-After`. */
  retryAfterMs?: number | undefined;
  /** Sets `Allow`. */
  allow?: string;
  /** The record as it is now. */
  record?: RecordView | undefined;
  /** The id of the absent record, or some of the ids that begin with the digits. */
  recordIds?: string[];
}

/** The problem of a code. `detail` is one sentence for a person, without any secret. */
export function adminProblem(
  code: AdminProblemCode,
  detail: string,
  { of = 'admin', retryAfterMs, allow, record, recordIds }: RefuseOptions = {},
): ProblemDocument {
  const [status, title] = adminProblems[code];
  const problem: ConsoleProblem = {
    ...{ type: `urn:oncegate:problem:${of}_${code}`, title, status, detail, code },
    ...(record && { record }),
    ...(recordIds && { recordIds }),
  };
  return documentOf(status, problem, {
    ...(retryAfterMs !== undefined && { 'Retry-After': String(Math.max(1, Math.ceil(retryAfterMs / 1000))) }),
    ...(allow !== undefined && { Allow: allow }),
  });
}

/** Answers with a problem, unless an answer has begun. */
export const refuse = (res: ServerResponse, ...problem: Parameters<typeof adminProblem>): void =>
  sendProblem(res, adminProblem(...problem));

/** Answers every other method of a path. */
export const allowOnly =
  (allow: string): RequestHandler =>
  (_req, res) =>
    refuse(res, 'method_not_allowed', `This path has ${allow} only.`, { allow });
