import { connect } from 'node:net';
import type { Exchange, LookupAnswer } from '../kernel/exchange.ts';
import type { Executor } from './executor.ts';

/** The part of `operations[].idempotency.lookup` that a request needs. */
export interface LookupRequest {
  /** With {merchant}, {key} and {operation}. */
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

/** Asks the backend what became of a transaction: one GET, without a second try. Never throws. */
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

/** The header fields of the lookup's response without which its body cannot be read. */
function descriptionOf(headers: readonly string[]): string[] {
  const kept = ['content-type', 'content-encoding'];
  return headers.filter((_, i) => kept.includes((headers[i - (i % 2)] as string).toLowerCase()));
}

/**
 * Undefined if a value could change the path. The merchant chooses the key: if the backend decoded it twice, or read it as a
 * dot segment, it would answer for another resource.
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

/** Can a connection to the backend be made? One line for the operator. */
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
