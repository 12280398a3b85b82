import type { ServerResponse } from 'node:http';
import { pipeline } from 'node:stream';
import type { RequestContext } from '../../kernel/context.ts';
import type { BackendResponse, Exchange } from '../../kernel/exchange.ts';
import { answerFields, hasField, ORIGINAL_REQUEST_ID, writable } from '../../kernel/fields.ts';
import { type Problem, problem } from '../../kernel/problem.ts';
import type { Result } from '../call.ts';
import type { Decision } from '../outcome.ts';

/** The merchant's answer, and its name in metrics and the log. */
export type Answer =
  | { outcome: string; problem: Problem }
  /** `originalRequestId`: the response is a replay, and this is the id of the first request. */
  | { outcome: string; response: BackendResponse; originalRequestId?: string }
  | { outcome: string; stream: Extract<Exchange, { kind: 'oversize' }> };

const refusal = (p: Problem): Answer => ({ outcome: p.code, problem: p });

/** The merchant's answer for each result of the engine. docs/merchants.md lists the codes. */
export function answerOf(result: Result): Answer {
  switch (result.kind) {
    case 'executed':
      return answerOfExchange(result.exchange, OUTCOMES[result.decision]);
    case 'replayed':
      return { outcome: 'replayed', response: result.response, originalRequestId: result.requestId };
    case 'tombstone':
      return refusal(
        problem('response_not_stored', 'The request was executed; its result is not kept for a retry.', {
          headers: { [ORIGINAL_REQUEST_ID]: result.requestId },
        }),
      );
    case 'in_flight':
      return refusal(
        problem(
          'request_in_flight',
          'The first request with this key still runs; ask again with the same key.',
          {
            retryAfterS: 1,
          },
        ),
      );
    case 'mismatch':
      return refusal(
        problem(
          'idempotency_key_reused',
          'This key was used for another request; a new request needs a new key.',
        ),
      );
    case 'in_doubt':
      return refusal(
        problem(
          'outcome_unknown',
          `The outcome of the first request has been unknown since ${new Date(result.sinceMs).toISOString()}. It was not sent again.`,
          { headers: { [ORIGINAL_REQUEST_ID]: result.requestId } },
        ),
      );
    case 'closing':
      return refusal(
        problem('shutting_down', 'The request was not sent; ask again with the same key.', {
          retryAfterS: 1,
        }),
      );
    case 'overloaded':
      return overloaded();
    case 'store_unavailable':
      return refusal(
        problem('store_unavailable', 'The request was not sent; ask again with the same key.', {
          retryAfterS: 1,
        }),
      );
  }
}

const OUTCOMES: Record<Decision, string> = {
  complete: 'executed',
  release: 'released',
  in_doubt: 'outcome_unknown',
};

/** No connection to the backend became free in time. */
export function overloaded(): Answer {
  const detail = 'The backend has no free connection. The request was not sent; ask again.';
  return refusal(problem('overloaded', detail, { retryAfterS: 1 }));
}

/** @param outcome the name of a complete answer: executed, released, forwarded, outcome_unknown */
export function answerOfExchange(exchange: Exchange, outcome: string): Answer {
  switch (exchange.kind) {
    case 'complete':
      return { outcome, response: exchange.response };
    case 'oversize':
      return { outcome, stream: exchange };
    case 'not_sent':
      return refusal(
        problem('upstream_unreachable', 'The backend could not be reached; the request was not sent.'),
      );
    case 'unknown':
      return refusal(
        problem(
          'outcome_unknown',
          'The request may have been executed, and the backend gave no complete answer.',
          {
            status: exchange.timedOut ? 504 : 502,
          },
        ),
      );
  }
}

/** Sends an answer, or passes a refusal on. */
export function sendAnswer(
  res: ServerResponse,
  context: RequestContext,
  answer: Answer,
  next: (refusal: Problem) => void,
): void {
  context.outcome = answer.outcome;
  if ('problem' in answer) next(answer.problem);
  else if ('stream' in answer) sendStream(res, answer.stream, context.requestId);
  else sendResponse(res, answer.response, context.requestId, answer.originalRequestId);
}

/** Beyond this size copying costs more than a second write. */
const IN_ONE_PIECE_BYTES = 16_384;

/**
 * Sends a response byte for byte.
 *
 * @param requestId of the request that gets it
 * @param originalRequestId the response is a replay: the id of the first request
 */
export function sendResponse(
  res: ServerResponse,
  response: BackendResponse,
  requestId: string,
  originalRequestId?: string,
): void {
  if (res.destroyed) return;
  const headers = answerFields(response.headers, requestId, originalRequestId);
  const bodiless = res.req.method === 'HEAD' || response.status === 204 || response.status === 304;
  // The backend may have sent it in chunks; here its length is known.
  if (!bodiless && !hasField(headers, 'content-length'))
    headers.push('Content-Length', String(response.body.length));
  res.sendDate = false;
  res.writeHead(response.status, writable(headers));
  endInTurn(res, bodiless ? undefined : response.body);
}

/** Responses whose bodies are ready. */
let ready: [ServerResponse, Buffer | undefined][] = [];

/**
 * Ends the response when the event loop has read all sockets that were readable. Responses that are written one after the
 * other cost a fifth less CPU: a write to a client that sleeps wakes it, and a busy client then reads several at once.
 */
function endInTurn(res: ServerResponse, body: Buffer | undefined): void {
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
    else if (body.length <= IN_ONE_PIECE_BYTES) res.end(body.toString('latin1'), 'latin1');
    else res.end(body);
  }
}

/** Streams an oversize response. If the backend breaks off, so does the merchant's connection. */
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
  pipeline(body, res, () => {});
}
