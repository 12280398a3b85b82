import type { IncomingMessage, ServerResponse } from 'node:http';
import { contextOf } from '../kernel/context.ts';
import { writable } from '../kernel/fields.ts';
import { type Problem, problem, sendProblem } from '../kernel/problem.ts';
import { endToEndHeaders } from './headers.ts';

/** What a reason phrase may hold (RFC 9112 §4). Node's client takes any, and its server throws. */
const REASON = /^[\t\x20-\x7e\x80-\xff]*$/;

/** Passes a response of the backend on, its fields as they stood on the wire. */
export function answer(
  proxyRes: IncomingMessage,
  req: IncomingMessage,
  res: ServerResponse,
  draining: boolean,
): void {
  if (res.destroyed || res.headersSent) {
    // Unread, it would keep its connection.
    proxyRes.destroy();
    return;
  }
  const { statusCode = 0, statusMessage = '' } = proxyRes;
  if (statusCode < 200) {
    // Left unread, so that its connection is closed with this answer and carries no other one.
    refuseAnswer(req, res);
    return;
  }
  if (draining) res.shouldKeepAlive = false;
  const reason = REASON.test(statusMessage) ? statusMessage : '';
  try {
    res.writeHead(statusCode, reason, writable(endToEndHeaders(proxyRes.rawHeaders)));
  } catch {
    // Whatever else Node's server refuses to write: nobody would catch it further up.
    res.statusMessage = '';
    refuseAnswer(req, res);
    return;
  }
  proxyRes.pipe(res);
  // The head must not wait for the body. By flushHeaders() it would go out as UTF-8.
  setImmediate(() => {
    if (!proxyRes.readableDidRead && !proxyRes.complete && !res.destroyed && !res.writableEnded) {
      res.write('', 'latin1');
    }
  });
}

/** The backend has answered, and it means nothing to anybody. */
export function refuseAnswer(req: IncomingMessage, res: ServerResponse): void {
  const context = contextOf(req);
  const refusal = incomplete();
  context.outcome = refusal.code;
  giveUp(res, refusal, context.requestId);
}

/** Answers with a problem, or breaks off. */
export function giveUp(res: ServerResponse, refusal: Problem, requestId: string): void {
  // Half an answer must not look whole.
  if (res.headersSent) res.destroy();
  else sendProblem(res, refusal, requestId);
}

/** By default 502. */
export const incomplete = (status = 502): Problem =>
  problem('outcome_unknown', 'The backend gave no complete answer; it may have acted on the request.', {
    status,
  });
