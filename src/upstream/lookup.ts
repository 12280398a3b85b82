import { connect } from 'node:net';
import type { Exchange, LookupAnswer } from '../kernel/exchange.ts';
import type { Executor } from './executor.ts';

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
): Promise<LookupAnswer> {
  const target = targetOf(options.path, transaction);
  if (target === undefined) return { kind: 'failed', said: 'the key cannot be part of a path' };
  const headers = ['Accept-Encoding', 'identity', 'X-Merchant-Code', transaction.merchant];
  const request = {
    method: 'GET',
    target,
    headers: [...headers, ...Object.entries(options.headers).flat()],
    body: Buffer.alloc(0),
  };
  const result = await executor.send(request, { timeoutMs: options.timeoutMs });
  return readAnswer(result, options);
}

function readAnswer(result: Exchange, { completed, released, completedStatus }: LookupRequest): LookupAnswer {
  if (result.kind === 'not_sent' || result.kind === 'unknown')
    return { kind: 'failed', said: `GET failed: ${result.reason}` };
  if (result.kind === 'oversize') result.body.destroy();
  const status = result.kind === 'oversize' ? result.status : result.response.status;
  const said = `GET answered ${status}`;
  if (released.includes(status)) return { kind: 'not_executed', said };
  if (!completed.includes(status)) return { kind: 'undecided', said };
  if (result.kind === 'oversize')
    return { kind: 'executed', said, completion: { kind: 'tombstone', status: completedStatus } };
  const { headers, body } = result.response;
  const response = { status: completedStatus, headers: descriptionOf(headers), body };
  return { kind: 'executed', said, completion: { kind: 'response', response } };
}

/** The header fields that a client needs to read the body. */
function descriptionOf(headers: readonly string[]): string[] {
  const kept = ['content-type', 'content-encoding'];
  return headers.filter((_, i) => kept.includes((headers[i - (i % 2)] as string).toLowerCase()));
}

/**
 * Fills in the path and percent-encodes the values. Undefined if a value could change the path: the merchant chooses the
 * key, and a backend that decodes it twice, or reads it as a dot segment, would answer for another resource.
 */
function targetOf(path: string, transaction: Transaction): string | undefined {
  const [before = '', ...query] = path.split('?');
  let unsafe = false;
  const fill = (text: string, inPath: boolean) =>
    text.replace(/\{(merchant|key|operation)\}/g, (_, name: keyof Transaction) => {
      const value = transaction[name];
      if (inPath && (/[/\\%;]/.test(value) || /^\.+$/.test(value))) unsafe = true;
      return encodeURIComponent(value);
    });
  const filled = [fill(before, true), ...query.map((text) => fill(text, false))].join('?');
  return unsafe ? undefined : filled;
}

/** For readiness: can a TCP connection to the backend be opened? `detail` is for the operator. */
export function reachable(url: string, timeoutMs: number): Promise<{ ok: boolean; detail: string }> {
  const { hostname, port, protocol } = new URL(url);
  const host = hostname.replace(/^\[|\]$/g, '');
  return new Promise((resolve) => {
    const socket = connect({ host, port: Number(port) || (protocol === 'https:' ? 443 : 80) });
    const end = (ok: boolean, detail: string) => {
      socket.destroy();
      resolve({ ok, detail });
    };
    socket.setTimeout(timeoutMs, () => end(false, `no connection within ${timeoutMs} ms`));
    socket.once('connect', () => end(true, 'reachable'));
    socket.once('error', (error: NodeJS.ErrnoException) => end(false, error.code ?? error.message));
  });
}
