import type { IncomingMessage, ServerResponse } from 'node:http';
import { echoRoute, sendStream } from './echo.ts';
import { FAULT_HEADER, type Faults, NO_FAULTS, type ParsedFaults, parseFaults } from './faults.ts';
import { INSPECTION_PREFIX, inspect, LOOKUP_PATH, lookUp } from './inspection.ts';
import type { Ledger } from './ledger.ts';
import { actionRoute, balanceRoute, chargeRoute } from './payments.ts';
import {
  type Connection,
  type Execution,
  errorReply,
  type Pause,
  replyAfterExecuting,
  replyWithoutExecuting,
  reset,
  send,
  withFaultyContent,
} from './reply.ts';
import { keyOf, pathOf, type RequestLog } from './request.ts';

export interface Backend {
  readonly ledger: Ledger;
  readonly requests: RequestLog;
  readonly faultsEnabled: boolean;
  /** The faults of requests with an idempotency key that name none themselves. */
  readonly usualFaults: Faults;
  /** The bearer token of lookups. Without one, lookups are off. */
  readonly lookupToken?: string | undefined;
  readonly pause: Pause;
  readonly delays: Delays;
}

/** Which requests the fault `delay` does not hold back any longer. */
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
  backend: Backend,
): Promise<void> {
  const { ledger, requests, faultsEnabled, usualFaults, lookupToken, pause } = backend;
  const plain: Connection = { request, response, faults: NO_FAULTS, pause };
  if (pathOf(request).startsWith(INSPECTION_PREFIX)) {
    return send(inspect(request, { audit: ledger.audit, requests, faultsEnabled }), plain);
  }
  requests.record(request);
  if (lookupToken !== undefined && pathOf(request) === LOOKUP_PATH)
    return send(lookUp(request, ledger.audit, lookupToken), plain);
  const parsed = faultsEnabled ? faultsOf(request, usualFaults) : { ok: true as const, faults: NO_FAULTS };
  if (!parsed.ok) return send(errorReply('invalid_fault', parsed.message), plain);
  const faultsHaveActed = parsed.faults.has('once') && isRepeated(request, requests);
  const faults = faultsHaveActed ? NO_FAULTS : parsed.faults;

  if (faults.has('refuse')) return reset(request);
  const execute = await receive(request, ledger);
  await delay(faults, request, backend);
  if (faults.has('reset-before-execute')) return reset(request);
  if (faults.has('hang')) return;

  const failure = replyWithoutExecuting(faults);
  if (failure === undefined && isStream(request)) return sendStream(request, response, pause);
  const reply = failure ?? replyAfterExecuting(execute(), faults);
  const acceptEncoding = request.headers['accept-encoding']?.toString() ?? '';
  await send(withFaultyContent(reply, faults, acceptEncoding), { ...plain, faults });
}

function faultsOf({ headers }: IncomingMessage, usual: Faults): ParsedFaults {
  const header = headers[FAULT_HEADER.toLowerCase()];
  if (header !== undefined) return parseFaults(header.toString());
  return { ok: true, faults: keyOf(headers) === undefined ? NO_FAULTS : usual };
}

/** Whether an earlier request had the same idempotency key. */
function isRepeated({ headers }: IncomingMessage, requests: RequestLog): boolean {
  const key = keyOf(headers);
  return key !== undefined && requests.ofKey(key) > 1;
}

/** The wait continues when the client disconnects, and the request is executed after it, as by a slow backend. */
async function delay(faults: Faults, request: IncomingMessage, { pause, delays }: Backend): Promise<void> {
  const delayMs = faults.get('delay');
  if (delayMs !== undefined) await delays.wait(keyOf(request.headers), () => pause(delayMs));
}

interface Route {
  /** An empty list allows all methods. */
  readonly methods: readonly string[];
  /** Reads the request. */
  readonly receive: (request: IncomingMessage, ledger: Ledger) => Promise<Execution>;
}

const ROUTES: ReadonlyMap<string, Route> = new Map([
  ['/v2/get_balance', { methods: ['GET', 'HEAD'], receive: balanceRoute }],
  ['/v1/index.php', { methods: ['POST'], receive: actionRoute }],
  ['/v3/stream', { methods: ['GET'], receive: echoRoute }],
  ['/v3/echo', { methods: [], receive: echoRoute }],
]);

const SAFE_METHODS = ['GET', 'HEAD', 'OPTIONS', 'TRACE'];

/**
 * Reads the request and returns its execution. On a path that is not in {@link ROUTES}, a request with an unsafe method
 * is a charge, so that clients of other payment APIs can be tested.
 */
async function receive(request: IncomingMessage, ledger: Ledger): Promise<Execution> {
  const route = ROUTES.get(pathOf(request));
  if (route !== undefined && isAllowed(route.methods, request.method)) return route.receive(request, ledger);
  if (route === undefined && !SAFE_METHODS.includes(request.method ?? ''))
    return chargeRoute(request, ledger);
  // Reads the body, so that the reply does not reset the connection.
  await echoRoute(request);
  if (route === undefined) return () => errorReply('not_found', `no endpoint at ${pathOf(request)}`);
  const allow = ['Allow', route.methods.join(', ')];
  return () => errorReply('method_not_allowed', `${pathOf(request)} does not allow ${request.method}`, allow);
}

function isAllowed(methods: readonly string[], method = ''): boolean {
  return methods.length === 0 || methods.includes(method);
}

function isStream(request: IncomingMessage): boolean {
  return request.method === 'GET' && pathOf(request) === '/v3/stream';
}
