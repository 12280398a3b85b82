import { connect, isIP } from 'node:net';
import { connect as connectTls, type TLSSocket } from 'node:tls';
import type { ClientTls } from '../lib/certificate.ts';
import type { Exchange, LookupAnswer } from '../lib/exchange.ts';
import { executedBehind } from '../lib/problem.ts';
import { endSent, type OwnRequest } from '../lib/trace.ts';
import type { Executor } from './executor.ts';
import { isFromCache } from './headers.ts';

/** `operations[].idempotency.lookup`, as far as one request needs it. */
export interface LookupRequest {
  /** May contain {merchant}, {key} and {operation}. */
  path: string;
  headers: Readonly<Record<string, string>>;
  completed: readonly number[];
  released: readonly number[];
  completedStatus: number;
  timeoutMs: number;
}

interface Transaction {
  merchant: string;
  operation: string;
  key: string;
}

/** Asks the backend with one GET what became of a transaction. Never retries, never throws. */
export async function lookUp(
  executor: Executor,
  options: LookupRequest,
  transaction: Transaction,
  traced?: OwnRequest,
): Promise<LookupAnswer> {
  const target = targetOf(options.path, transaction);
  if (target === undefined) return { kind: 'failed', said: 'the key cannot be part of a path' };
  const headers = ['Accept-Encoding', 'identity', 'X-Merchant-Code', transaction.merchant];
  // A cache would repeat an answer from before the execution.
  headers.push('Cache-Control', 'no-cache, no-store');
  if (traced) headers.push('traceparent', traced.traceparent);
  const request = {
    method: 'GET',
    target,
    headers: [...headers, ...Object.entries(options.headers).flat()],
    body: Buffer.alloc(0),
  };
  const result = await executor.send(request, { timeoutMs: options.timeoutMs });
  if (traced) endSent(traced, result);
  return readAnswer(result, options);
}

function readAnswer(result: Exchange, { completed, released, completedStatus }: LookupRequest): LookupAnswer {
  if (result.kind === 'not_sent' || result.kind === 'unknown')
    return { kind: 'failed', said: `GET failed: ${result.reason}` };
  if (result.kind === 'oversize') result.body.destroy();
  const { status, headers } = result.kind === 'oversize' ? result : result.response;
  const said = `GET answered ${status}`;
  if (isFromCache(headers)) return { kind: 'undecided', said: `${said}, from a cache` };
  // Another gateway's own 404 says that the GET was not sent, and nothing of the transaction.
  if (result.kind === 'complete' && executedBehind(result.response)) return { kind: 'undecided', said };
  if (released.includes(status)) return { kind: 'not_executed', said };
  if (!completed.includes(status)) return { kind: 'undecided', said };
  if (result.kind === 'oversize')
    return { kind: 'executed', said, completion: { kind: 'tombstone', status: completedStatus } };
  const { body } = result.response;
  const response = { status: completedStatus, headers: descriptionOf(headers), body };
  return { kind: 'executed', said, completion: { kind: 'response', response } };
}

/** The header fields that a client needs to read the body. */
function descriptionOf(headers: readonly string[]): string[] {
  const kept = ['content-type', 'content-encoding'];
  return headers.filter((_, i) => kept.includes((headers[i - (i % 2)] as string).toLowerCase()));
}

/**
 * Fills in the path and percent-encodes the values, unless a value could change the path: the merchant chooses the key, and a backend
 * that decodes it twice, reads it as a dot segment, or takes what follows a dot for the name of a format, as Rails and Spring do,
 * would answer for another resource.
 */
function targetOf(path: string, transaction: Transaction): string | undefined {
  const [before = '', ...query] = path.split('?');
  let unsafe = false;
  const fill = (text: string, inPath: boolean) =>
    text.replace(/\{(merchant|key|operation)\}/g, (_, name: keyof Transaction) => {
      const value = transaction[name];
      if (inPath && /[/\\%;.?#]/.test(value)) unsafe = true;
      return encodeURIComponent(value);
    });
  const filled = [fill(before, true), ...query.map((text) => fill(text, false))].join('?');
  return unsafe ? undefined : filled;
}

/**
 * How long to wait for a server's refusal after the handshake. Under TLS 1.3 a client has finished the handshake before the
 * server has looked at its certificate.
 */
const REFUSAL_WITHIN_MS = 200;

/**
 * Checks for readiness whether a connection to the backend can be opened, with TLS if the URL is https. `detail` is for the operator.
 *
 * @param tls as for the executor
 */
export function reachable(
  url: string,
  timeoutMs: number,
  tls?: ClientTls,
): Promise<{ ok: boolean; detail: string }> {
  const { hostname, port, protocol } = new URL(url);
  const host = hostname.replace(/^\[|\]$/g, '');
  const secure = protocol === 'https:';
  const address = { host, port: Number(port) || (secure ? 443 : 80) };
  return new Promise((resolve) => {
    const name = isIP(host) ? {} : { servername: host };
    const socket = secure
      ? connectTls({ ...address, ...name, ALPNProtocols: ['http/1.1'], ...tls?.options })
      : connect(address);
    const end = (ok: boolean, detail: string) => {
      clearTimeout(timer);
      socket.destroy();
      resolve({ ok, detail });
    };
    const reached = () => end(true, 'reachable');
    let timer = setTimeout(() => end(false, `no connection within ${timeoutMs} ms`), timeoutMs);
    socket.once('error', (error: NodeJS.ErrnoException) => end(false, error.code ?? error.message));
    socket.once('close', () => end(false, 'the backend closed the connection'));
    if (!secure) socket.once('connect', reached);
    socket.once('secureConnect', () => {
      if ((socket as TLSSocket).getProtocol() !== 'TLSv1.3') return reached();
      clearTimeout(timer);
      timer = setTimeout(reached, REFUSAL_WITHIN_MS);
    });
  });
}
