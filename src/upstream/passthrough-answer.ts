import type { IncomingMessage, ServerResponse } from 'node:http';
import { contextOf } from '../kernel/context.ts';
import { answerFields, ORIGINAL_REQUEST_ID, writable } from '../kernel/fields.ts';
import { type Problem, problem, sendProblem } from '../kernel/problem.ts';
import { endToEndHeaders } from './headers.ts';

/** What a reason phrase may hold (RFC 9112 §4). Node's client takes any, and its server throws. */
const REASON = /^[\t\x20-\x7e\x80-\xff]*$/;

/** Passes a response of the backend on, with its fields as they were on the wire. */
export function answer(
  proxyRes: IncomingMessage,
  req: IncomingMessage,
  res: ServerResponse,
  draining: boolean,
): void {
  if (res.destroyed || res.headersSent) {
    // An unread response would keep its connection.
    proxyRes.destroy();
    return;
  }
  const { statusCode = 0, statusMessage = '' } = proxyRes;
  if (statusCode < 200) {
    // The rest stays unread, so that the connection is closed with this answer and not used again.
    refuseAnswer(req, res);
    return;
  }
  if (draining) res.shouldKeepAlive = false;
  const reason = REASON.test(statusMessage) ? statusMessage : '';
  const headers = answerFields(endToEndHeaders(proxyRes.rawHeaders), contextOf(req).requestId);
  try {
    res.writeHead(statusCode, reason, writable(headers));
  } catch {
    // Node's server may refuse to write other things too, and no caller would catch that.
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

/**
 * The answer to a handshake gets the gateway's request id, see {@link answerFields}. http-proxy-middleware writes that answer
 * itself, from `headers`.
 */
export function nameRequest({ headers }: IncomingMessage, req: IncomingMessage): void {
  headers['x-request-id'] = contextOf(req).requestId;
  delete headers[ORIGINAL_REQUEST_ID.toLowerCase()];
}

/** The backend's answer is not valid HTTP. */
export function refuseAnswer(req: IncomingMessage, res: ServerResponse): void {
  const context = contextOf(req);
  const refusal = incomplete();
  context.outcome = refusal.code;
  giveUp(res, refusal, context.requestId);
}

/** Answers with a problem, or breaks the connection if an answer has begun. */
export function giveUp(res: ServerResponse, refusal: Problem, requestId: string): void {
  // A truncated answer must not look complete.
  if (res.headersSent) res.destroy();
  else sendProblem(res, refusal, requestId);
}

/** By default 502. */
export const incomplete = (status = 502): Problem =>
  problem('outcome_unknown', 'The backend gave no complete answer; it may have acted on the request.', {
    status,
  });
