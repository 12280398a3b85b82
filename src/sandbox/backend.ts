import type { IncomingMessage, ServerResponse } from 'node:http';
import { echoRoute, streamEcho } from './echo.ts';
import { FAULT_HEADER, type Faults, NO_FAULTS, parseFaults } from './faults.ts';
import {
  DELIVERIES_PATH,
  INSPECTION_PREFIX,
  inspect,
  LOOKUP_PATH,
  markerOf,
  replyToLookup,
} from './inspection.ts';
import { actionRoute, balanceRoute, chargeRoute } from './payments.ts';
import {
  type Connection,
  type Execute,
  errorReply,
  jsonReply,
  replyAfterExecuting,
  replyWithoutExecuting,
  reset,
  send,
  sleepFor,
  withFaultyContent,
} from './reply.ts';
import { keyOf, requestPath, requestQuery, type SandboxRequests } from './request.ts';
import type { SandboxLedger } from './sandbox-ledger.ts';

export interface Backend {
  readonly ledger: SandboxLedger;
  readonly requests: SandboxRequests;
  /** The faults of requests with an idempotency key that name none themselves. */
  readonly usualFaults: Faults;
  /** The bearer token of lookups. Without one, lookups are off. */
  readonly lookupToken: string | undefined;
  readonly delays: Delays;
}

/** Holds back requests with the fault `delay`, until their delay has passed or a test has ended it. */
export class Delays {
  readonly #ended = new Set<string>();
  readonly #waiting = new Set<{ key: string | undefined; resolve: () => void }>();

  /** Ends the delays of all requests with this idempotency key: those that wait now, and those that come later. */
  end(key: string): void {
    this.#ended.add(key);
    for (const waiting of this.#waiting) if (waiting.key === key) waiting.resolve();
  }

  /** Resolves with `elapsed`, or when the delays of this key are ended. */
  async wait(key: string | undefined, elapsed: () => Promise<unknown>): Promise<void> {
    if (key !== undefined && this.#ended.has(key)) return;
    const { promise: ended, resolve } = Promise.withResolvers<void>();
    const waiting = { key, resolve };
    this.#waiting.add(waiting);
    await Promise.race([elapsed(), ended]).finally(() => this.#waiting.delete(waiting));
  }
}

/** Handles one request. Each fault acts at one of these steps, so their order decides whether the request is executed. */
export async function handle(
  request: IncomingMessage,
  response: ServerResponse,
  { ledger, requests, usualFaults, lookupToken, delays }: Backend,
): Promise<void> {
  const plain: Connection = { request, response, faults: NO_FAULTS };
  const path = requestPath(request);
  if (path === DELIVERIES_PATH && request.method === 'POST') {
    requests.deliver(markerOf(request));
    return requestQuery(request).get('end') === 'reset' ? reset(request) : send(jsonReply(503, {}), plain);
  }
  if (path.startsWith(INSPECTION_PREFIX)) return send(inspect(request, ledger, requests), plain);
  requests.add(request);
  if (lookupToken !== undefined && path === LOOKUP_PATH)
    return send(replyToLookup(request, ledger, lookupToken), plain);
  const key = keyOf(request.headers);
  const named = request.headers[FAULT_HEADER.toLowerCase()]?.toString();
  const unnamed = key === undefined ? NO_FAULTS : usualFaults;
  const asked = named === undefined ? unnamed : parseFaults(named);
  if (typeof asked === 'string') return send(errorReply('invalid_fault', asked), plain);
  const isRepeated = key !== undefined && requests.ofKey(key) > 1;
  const faults = asked.has('once') && isRepeated ? NO_FAULTS : asked;

  if (faults.has('refuse')) return reset(request);
  const execute = await receive(request, ledger);
  const delayMs = faults.get('delay');
  // The wait goes on when the client disconnects, and the request is executed after it, as by a slow backend.
  if (delayMs !== undefined) await delays.wait(key, () => sleepFor(delayMs));
  if (faults.has('reset-before-execute')) return reset(request);
  if (faults.has('hang')) return;

  const failure = replyWithoutExecuting(faults);
  if (failure === undefined && request.method === 'GET' && path === '/v3/stream')
    return streamEcho(request, response);
  const reply = failure ?? replyAfterExecuting(execute(), faults);
  const acceptEncoding = request.headers['accept-encoding']?.toString() ?? '';
  await send(withFaultyContent(reply, faults, acceptEncoding), { ...plain, faults });
}

const ROUTES = new Map<string, typeof chargeRoute>([
  ['GET /v2/get_balance', balanceRoute],
  ['POST /v1/index.php', actionRoute],
  ['GET /v3/stream', echoRoute],
]);

const PATHS_OF_ROUTES = ['/v2/get_balance', '/v1/index.php', '/v3/stream'];
const SAFE_METHODS = ['GET', 'HEAD', 'OPTIONS', 'TRACE'];

/**
 * Reads the request and returns its execution. On a path that no route has, a request with an unsafe method is a charge,
 * so that clients of other payment APIs can be tested.
 */
async function receive(request: IncomingMessage, ledger: SandboxLedger): Promise<Execute> {
  const [path, method = ''] = [requestPath(request), request.method];
  if (path === '/v3/echo') return echoRoute(request);
  const route = ROUTES.get(`${method === 'HEAD' ? 'GET' : method} ${path}`);
  if (route) return route(request, ledger);
  if (!PATHS_OF_ROUTES.includes(path) && !SAFE_METHODS.includes(method)) return chargeRoute(request, ledger);
  // Reads the body, so that the reply does not reset the connection.
  await echoRoute(request);
  return () => errorReply('not_found', `no endpoint at ${method} ${path}`);
}
