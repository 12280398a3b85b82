import type { ServerResponse } from 'node:http';
import type { RequestContext } from '../lib/context.ts';
import type { BackendResponse, Exchange } from '../lib/exchange.ts';
import { type Problem, problem, streamOrCut } from '../lib/problem.ts';
import { answerFields, hasField, ORIGINAL_REQUEST_ID, writable } from '../requests/fields.ts';
import type { Result } from './call.ts';
import type { Decision } from './outcome.ts';

/** The merchant's answer. `outcome`: its name in metrics and the log. */
export type MerchantAnswer =
  | { outcome: string; problem: Problem }
  /** `originalRequestId`: the response is a replay, and this is the id of the first request. */
  | { outcome: string; response: BackendResponse; originalRequestId?: string }
  | { outcome: string; stream: Extract<Exchange, { kind: 'oversize' }> };

const refusal = (...of: Parameters<typeof problem>): MerchantAnswer => {
  const refused = problem(...of);
  return { outcome: refused.code, problem: refused };
};

/** The merchant's answer for each result of the engine. docs/merchants.md lists the codes. */
export function answerOf(result: Result): MerchantAnswer {
  switch (result.kind) {
    case 'executed':
      return answerOfExchange(result.exchange, OUTCOMES[result.decision]);
    case 'replayed':
      return { outcome: 'replayed', response: result.response, originalRequestId: result.requestId };
    case 'tombstone':
      return refusal('response_not_stored', 'The request was executed, but its response was not stored.', {
        headers: { [ORIGINAL_REQUEST_ID]: result.requestId },
      });
    case 'in_flight':
      return refusal('request_in_flight', `The first request with this key still runs; ${RETRY}`);
    case 'mismatch': {
      const detail = 'This key was used for another request; a new request needs a new key.';
      return refusal('idempotency_key_reused', detail);
    }
    case 'in_doubt': {
      const since = new Date(result.sinceMs).toISOString();
      const detail = `The outcome of the first request has been unknown since ${since}. It was not sent again.`;
      return refusal('outcome_unknown', detail, { headers: { [ORIGINAL_REQUEST_ID]: result.requestId } });
    }
    case 'closing':
      return refusal('shutting_down', NOT_SENT);
    case 'overloaded':
      return overloaded();
    case 'store_unavailable':
      return refusal('store_unavailable', NOT_SENT);
  }
}

const RETRY = 'retry with the same key.';
const NOT_SENT = `The request was not sent; ${RETRY}`;

const OUTCOMES: Record<Decision, string> = {
  complete: 'executed',
  release: 'released',
  in_doubt: 'outcome_unknown',
};

/** No slot became free in time, or the queue for slots is full. */
export function overloaded(): MerchantAnswer {
  const detail = 'No connection to the backend is free. The request was not sent; retry.';
  return refusal('overloaded', detail);
}

/** @param outcome the outcome of a complete response: executed, released, forwarded, outcome_unknown */
export function answerOfExchange(exchange: Exchange, outcome: string): MerchantAnswer {
  switch (exchange.kind) {
    case 'complete':
      return { outcome, response: exchange.response };
    case 'oversize':
      return { outcome, stream: exchange };
    case 'not_sent':
      return refusal('upstream_unreachable', 'The backend could not be reached; the request was not sent.');
    case 'unknown': {
      const detail = 'The request may have been executed, but the backend sent no complete response.';
      return refusal('outcome_unknown', detail, { status: exchange.timedOut ? 504 : 502 });
    }
  }
}

/** Sends an answer. A problem is passed to `next`, because refusals are sent in one place. */
export function sendAnswer(
  res: ServerResponse,
  context: RequestContext,
  answer: MerchantAnswer,
  next: (refusal: Problem) => void,
): void {
  context.outcome = answer.outcome;
  if ('problem' in answer) next(answer.problem);
  else if ('stream' in answer) sendStream(res, answer.stream, context.requestId);
  else sendResponse(res, answer.response, context.requestId, answer.originalRequestId);
}

/** Up to this size, copying the body is cheaper than a second write. */
const ONE_WRITE_BYTES = 16_384;

/**
 * Sends a response byte for byte.
 *
 * @param requestId of the request that gets it
 * @param originalRequestId the response is a replay: the id of the first request
 */
function sendResponse(
  res: ServerResponse,
  response: BackendResponse,
  requestId: string,
  originalRequestId?: string,
): void {
  if (res.destroyed) return;
  const headers = answerFields(response.headers, requestId, originalRequestId);
  const bodiless = res.req.method === 'HEAD' || response.status === 204 || response.status === 304;
  // The backend may have sent a chunked body. Its length is known by now.
  if (!bodiless && !hasField(headers, 'content-length'))
    headers.push('Content-Length', String(response.body.length));
  res.sendDate = false;
  res.writeHead(response.status, writable(headers));
  endInBatch(res, bodiless ? undefined : response.body);
}

/** Responses that end in the next batch. */
let ready: [ServerResponse, Buffer | undefined][] = [];

/**
 * Ends the response after the event loop has read all readable sockets, together with the others of this turn. Writing
 * responses in batches costs a fifth less CPU: the first write wakes a client, which then reads several responses at once.
 */
function endInBatch(res: ServerResponse, body: Buffer | undefined): void {
  if (ready.length === 0) setImmediate(endReady);
  ready.push([res, body]);
}

function endReady(): void {
  const responses = ready;
  ready = [];
  for (const [res, body] of responses) {
    if (res.destroyed) continue;
    if (!body) res.end();
    // Node sends a latin1 string together with the head in one write.
    else if (body.length <= ONE_WRITE_BYTES) res.end(body.toString('latin1'), 'latin1');
    else res.end(body);
  }
}

/** Streams an oversize response. If the backend's connection breaks, the merchant's is closed too: the body is truncated. */
export function sendStream(
  res: ServerResponse,
  { status, headers, body }: Extract<Exchange, { kind: 'oversize' }>,
  requestId: string,
): void {
  if (res.destroyed) {
    body.destroy();
    return;
  }
  res.sendDate = false;
  res.writeHead(status, writable(answerFields(headers, requestId)));
  streamOrCut(body, res);
}
