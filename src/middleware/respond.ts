import type { ServerResponse } from 'node:http';
import type { BackendResponse } from '../lib/exchange.ts';
import { type Problem, problemBody, problemHeaders } from '../lib/problem.ts';
import { answerFields } from '../requests/fields.ts';

/**
 * Sends a response by `setHeader` and `end`, because middleware such as compression may have replaced these methods, and
 * older versions of it misread the header fields of `writeHead`.
 */
export function writeResponse(
  res: ServerResponse,
  { status, headers, body }: BackendResponse,
  requestId: string,
  originalRequestId?: string,
): void {
  if (res.destroyed || res.headersSent) return;
  setHead(res, status, answerFields(headers, requestId, originalRequestId));
  res.end(body);
}

/** Answers with a problem document. */
export function writeProblem(res: ServerResponse, problem: Problem, requestId: string): void {
  if (res.destroyed || res.headersSent) return;
  const body = problemBody(problem, requestId);
  setHead(res, problem.status, problemHeaders(problem, requestId, Buffer.byteLength(body)));
  // Node would read the rest of an unread body as the next request.
  if (!res.req.complete) res.setHeader('Connection', 'close');
  res.end(body);
}

/** @param fields names and values in turn */
export function setHead(res: ServerResponse, status: number, fields: readonly string[]): void {
  res.statusCode = status;
  const values = new Map<string, { name: string; values: string[] }>();
  for (let i = 0; i + 1 < fields.length; i += 2) {
    const name = fields[i] as string;
    const field = values.get(name.toLowerCase());
    if (field) field.values.push(fields[i + 1] as string);
    else values.set(name.toLowerCase(), { name, values: [fields[i + 1] as string] });
  }
  for (const { name, values: all } of values.values())
    res.setHeader(name, all.length === 1 ? (all[0] as string) : all);
}
