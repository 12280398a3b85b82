import type { Executor, UpstreamResult } from './executor.ts';

/** What the proxy needs of `operations[].idempotency.lookup`. */
export interface LookupRequest {
  /** With {merchant}, {key} and {operation}. */
  path: string;
  headers: Readonly<Record<string, string>>;
  settled: readonly number[];
  released: readonly number[];
  settledStatus: number;
  timeoutMs: number;
}

interface Transaction {
  merchant: string;
  operation: string;
  key: string;
}

type Response = Extract<UpstreamResult, { kind: 'complete' }>['response'];

/** The same shape as the idempotency room's `LookupAnswer`. */
type LookedUp =
  | {
      kind: 'executed';
      said: string;
      settlement: { kind: 'response'; response: Response } | { kind: 'tombstone'; status: number };
    }
  | { kind: 'not_executed' | 'undecided' | 'failed'; said: string };

/** Asks the backend what became of a transaction: one GET, without a second try. Never throws. */
export async function lookUp(
  executor: Executor,
  options: LookupRequest,
  transaction: Transaction,
): Promise<LookedUp> {
  const target = targetOf(options.path, transaction);
  if (target === undefined) return { kind: 'failed', said: 'the key cannot stand in a path' };
  const headers = ['Accept-Encoding', 'identity', 'X-Merchant-Code', transaction.merchant];
  const request = {
    method: 'GET',
    target,
    headers: [...headers, ...Object.entries(options.headers).flat()],
    body: Buffer.alloc(0),
  };
  const result = await executor.send(request, { timeoutMs: options.timeoutMs });
  return answerOf(result, options);
}

function answerOf(result: UpstreamResult, { settled, released, settledStatus }: LookupRequest): LookedUp {
  if (result.kind === 'not_sent' || result.kind === 'unknown')
    return { kind: 'failed', said: `GET failed: ${result.reason}` };
  if (result.kind === 'oversize') result.body.destroy();
  const status = result.kind === 'oversize' ? result.status : result.response.status;
  const said = `GET answered ${status}`;
  if (released.includes(status)) return { kind: 'not_executed', said };
  if (!settled.includes(status)) return { kind: 'undecided', said };
  if (result.kind === 'oversize')
    return { kind: 'executed', said, settlement: { kind: 'tombstone', status: settledStatus } };
  const { headers, body } = result.response;
  const response = { status: settledStatus, headers: descriptionOf(headers), body };
  return { kind: 'executed', said, settlement: { kind: 'response', response } };
}

/** Of the lookup's header fields, those that the body cannot be read without. */
function descriptionOf(headers: readonly string[]): string[] {
  const kept = ['content-type', 'content-encoding'];
  return headers.filter((_, i) => kept.includes((headers[i - (i % 2)] as string).toLowerCase()));
}

/**
 * Undefined where a value could make another path of it. The key is the merchant's to choose: decoded once more, or
 * taken for a dot segment, it would have the backend speak of something else.
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
