import type { IncomingMessage, ServerResponse } from 'node:http';
import { contextOf } from '../lib/context.ts';
import { type Problem, problem, problemDocument, sendProblemOrCut } from '../lib/problem.ts';
import { answerFields, ORIGINAL_REQUEST_ID, writable } from '../requests/fields.ts';
import { endToEndHeaders } from './headers.ts';

/** A valid reason phrase (RFC 9112 §4). Node's HTTP client accepts others, and its server throws on them. */
const REASON = /^[\t\x20-\x7e\x80-\xff]*$/;

/** Streams a response of the backend to the merchant, with its end-to-end fields in their original order and case. */
export function answer(
  proxyRes: IncomingMessage,
  req: IncomingMessage,
  res: ServerResponse,
  draining: boolean,
): void {
  if (res.destroyed || res.headersSent) {
    // An unread response would occupy its connection.
    proxyRes.destroy();
    return;
  }
  const { statusCode = 0, statusMessage = '' } = proxyRes;
  if (statusCode < 200) {
    // The rest of the response stays unread, so that its connection is not used again.
    refuseAnswer(req, res);
    return;
  }
  if (draining) res.shouldKeepAlive = false;
  const reason = REASON.test(statusMessage) ? statusMessage : '';
  const headers = answerFields(endToEndHeaders(proxyRes.rawHeaders), contextOf(req).requestId);
  try {
    res.writeHead(statusCode, reason, writable(headers));
  } catch {
    // Node throws on invalid heads that the lines above let through, and an uncaught error would end the gateway.
    res.statusMessage = '';
    refuseAnswer(req, res);
    return;
  }
  proxyRes.pipe(res);
  // Send the head without waiting for the body. flushHeaders() would encode it as UTF-8.
  setImmediate(() => {
    if (!proxyRes.readableDidRead && !proxyRes.complete && !res.destroyed && !res.writableEnded) {
      res.write('', 'latin1');
    }
  });
}

/**
 * Puts the gateway's request id into the answer to a handshake, as {@link answerFields} does for other answers.
 * http-proxy-middleware writes that answer itself, from `headers`.
 */
export function setRequestId({ headers }: IncomingMessage, req: IncomingMessage): void {
  headers['x-request-id'] = contextOf(req).requestId;
  delete headers[ORIGINAL_REQUEST_ID.toLowerCase()];
}

/** Refuses a response of the backend that cannot be passed on: it is not valid HTTP, or an upgrade that was not asked for. */
export function refuseAnswer(req: IncomingMessage, res: ServerResponse): void {
  const context = contextOf(req);
  const refusal = incomplete();
  context.outcome = refusal.code;
  sendProblemOrCut(res, problemDocument(refusal, context.requestId));
}

export const incomplete = (status = 502): Problem =>
  problem('outcome_unknown', 'The backend gave no complete answer; it may have acted on the request.', {
    status,
  });
