import type { IncomingMessage, ServerResponse } from 'node:http';
import { actionRoute, balanceRoute, chargeRoute } from './actions.ts';
import { answerAfter, answerBefore, dressUp } from './answer.ts';
import { deliver, type Line, type Pause, reset } from './delivery.ts';
import { echoRoute, stream } from './echo.ts';
import { FAULT_HEADER, type Faults, NO_FAULTS, type ParsedFaults, parseFaults } from './faults.ts';
import type { Ledger } from './ledger.ts';
import { LOOKUP_PATH, lookUp } from './lookup.ts';
import { keyOf } from './notes.ts';
import { type Execution, errorReply } from './reply.ts';
import type { RequestLog } from './requests.ts';
import { pathOf } from './target.ts';
import { WITNESS_PREFIX, witness } from './witness.ts';

export interface Backend {
  readonly ledger: Ledger;
  readonly requests: RequestLog;
  readonly faultsEnabled: boolean;
  /** What a lookup has to show; without one there are no lookups. */
  readonly lookupToken?: string | undefined;
  readonly pause: Pause;
}

/**
 * One request from its headers to its answer. The order of the steps is what the fault switches are about.
 */
export async function handle(
  request: IncomingMessage,
  response: ServerResponse,
  backend: Backend,
): Promise<void> {
  const { ledger, requests, faultsEnabled, pause } = backend;
  const plain: Line = { request, response, faults: NO_FAULTS, pause };
  if (pathOf(request).startsWith(WITNESS_PREFIX)) {
    return deliver(witness(request, { audit: ledger.audit, requests, faultsEnabled }), plain);
  }
  requests.record(request);
  if (backend.lookupToken !== undefined && pathOf(request) === LOOKUP_PATH)
    return deliver(lookUp(request, ledger.audit, backend.lookupToken), plain);
  const parsed = faultsEnabled ? faultsOf(request) : { ok: true as const, faults: NO_FAULTS };
  if (!parsed.ok) return deliver(errorReply('invalid_fault', parsed.message), plain);
  const isOver = parsed.faults.has('once') && isRepeated(request, requests);
  const line: Line = { ...plain, faults: isOver ? NO_FAULTS : parsed.faults };

  if (line.faults.has('refuse')) return reset(request);
  const execute = await receive(request, ledger);
  await pauseFor(line.faults, pause);
  if (line.faults.has('reset-before-execute')) return reset(request);
  if (line.faults.has('hang')) return;

  const broken = answerBefore(line.faults);
  if (broken === undefined && isStream(request)) return stream(request, response, pause);
  const reply = broken ?? answerAfter(execute(), line.faults);
  await deliver(dressUp(reply, line.faults, request.headers['accept-encoding']?.toString() ?? ''), line);
}

function faultsOf(request: IncomingMessage): ParsedFaults {
  const header = request.headers[FAULT_HEADER.toLowerCase()];
  return header === undefined ? { ok: true, faults: NO_FAULTS } : parseFaults(header.toString());
}

function isRepeated({ headers }: IncomingMessage, requests: RequestLog): boolean {
  const key = keyOf(headers);
  return key !== undefined && requests.ofKey(key) > 1;
}

/** A timer, and not the socket, ends the wait: a slow backend pays although its client has long hung up. */
async function pauseFor(faults: Faults, pause: Pause): Promise<void> {
  const delayMs = faults.get('delay');
  if (delayMs !== undefined) await pause(delayMs);
}

type Receive = (request: IncomingMessage, ledger: Ledger) => Promise<Execution>;

const ROUTES: ReadonlyMap<string, { readonly methods: readonly string[]; readonly receive: Receive }> =
  new Map([
    ['/v2/get_balance', { methods: ['GET', 'HEAD'], receive: balanceRoute }],
    ['/v1/index.php', { methods: ['POST'], receive: actionRoute }],
    ['/v3/stream', { methods: ['GET'], receive: echoRoute }],
    ['/v3/echo', { methods: [], receive: echoRoute }],
  ]);

const SAFE_METHODS = ['GET', 'HEAD', 'OPTIONS', 'TRACE'];

/**
 * Reads the request and hands back its execution. A route without methods takes them all. On every other path a request
 * with an unsafe method is a charge, as in some other payment API.
 */
async function receive(request: IncomingMessage, ledger: Ledger): Promise<Execution> {
  const route = ROUTES.get(pathOf(request));
  if (route !== undefined && isAllowed(route.methods, request.method)) return route.receive(request, ledger);
  if (route === undefined && !SAFE_METHODS.includes(request.method ?? ''))
    return chargeRoute(request, ledger);
  await echoRoute(request);
  if (route === undefined) return () => errorReply('not_found', `there is nothing at ${pathOf(request)}`);
  const allow = ['Allow', route.methods.join(', ')];
  return () => errorReply('method_not_allowed', `${pathOf(request)} does not take ${request.method}`, allow);
}

function isAllowed(methods: readonly string[], method = ''): boolean {
  return methods.length === 0 || methods.includes(method);
}

function isStream(request: IncomingMessage): boolean {
  return request.method === 'GET' && pathOf(request) === '/v3/stream';
}
