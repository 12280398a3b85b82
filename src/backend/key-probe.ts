import { NAME_PATTERN } from '../lib/context.ts';
import type { Exchange, ProbeAnswer } from '../lib/exchange.ts';
import { endSent, type OwnRequest } from '../lib/trace.ts';
import { hasDuplicateMember } from '../requests/duplicate-member.ts';
import type { Executor } from './executor.ts';
import { isFromCache, type RawHeaders } from './headers.ts';

/** Largest answer to a probe that is read: 64 KiB. */
export const MAX_PROBE_BYTES = 65_536;

export interface ProbeRequest {
  /** Path and query. */
  path: string;
  /** Names of members from the outside in, joined by dots, such as `data.merchant_code`. */
  merchantCodeAt: string;
  /** Statuses by which the backend says that a secret key is not valid. */
  refused: readonly number[];
  timeoutMs: number;
}

/** Asks the backend with one GET whose secret key this is. Never retries, never throws. */
export async function probeKey(
  executor: Executor,
  options: ProbeRequest,
  secret: string,
  traced?: OwnRequest,
): Promise<ProbeAnswer> {
  const headers = ['Authorization', `Bearer ${secret}`, 'Accept', 'application/json'];
  // A cache that ignores Authorization would answer with another merchant's code.
  headers.push('Accept-Encoding', 'identity', 'Cache-Control', 'no-cache, no-store');
  if (traced) headers.push('traceparent', traced.traceparent);
  const request = { method: 'GET', target: options.path, headers, body: Buffer.alloc(0) };
  const result = await executor.send(request, { timeoutMs: options.timeoutMs });
  if (traced) endSent(traced, result);
  return readAnswer(result, options);
}

/** `reason` is logged, so it quotes nothing of the answer. */
function readAnswer(result: Exchange, { refused, merchantCodeAt }: ProbeRequest): ProbeAnswer {
  // It may be the answer to another merchant's key.
  if (isFromCache(headersOf(result))) return failed('the answer is from a cache');
  // A refusal needs no body.
  if (result.kind === 'unknown' && refused.includes(result.response?.status ?? 0)) return { kind: 'refused' };
  if (result.kind === 'not_sent' || result.kind === 'unknown') return failed(result.reason);
  if (result.kind === 'oversize') {
    result.body.destroy();
    return failed(`the answer is larger than ${MAX_PROBE_BYTES} bytes`);
  }
  const { status, body } = result.response;
  if (refused.includes(status)) return { kind: 'refused' };
  if (status < 200 || status > 299) return failed(`GET answered ${status}`);
  const merchantCode = codeIn(body.toString('utf8'), merchantCodeAt.split('.'));
  if (merchantCode !== undefined) return { kind: 'accepted', merchantCode };
  return failed(`GET answered ${status} without a valid merchant code at ${merchantCodeAt}`);
}

function headersOf(result: Exchange): RawHeaders {
  if (result.kind === 'oversize') return result.headers;
  return (result.kind === 'not_sent' ? undefined : result.response)?.headers ?? [];
}

const failed = (reason: string): ProbeAnswer => ({ kind: 'failed', reason });

/** Finds the merchant code, unless the text is not JSON, says `"success": false`, or has no valid code there. */
function codeIn(json: string, members: readonly string[]): string | undefined {
  let at: unknown;
  try {
    at = JSON.parse(json);
  } catch {
    return undefined;
  }
  // Two parsers could read two different merchants.
  if (hasDuplicateMember(json) || memberOf(at, 'success') === false) return undefined;
  for (const member of members) at = memberOf(at, member);
  return typeof at === 'string' && NAME_PATTERN.test(at) ? at : undefined;
}

function memberOf(value: unknown, name: string): unknown {
  const isObject = typeof value === 'object' && value !== null && !Array.isArray(value);
  return isObject && Object.hasOwn(value, name) ? (value as Record<string, unknown>)[name] : undefined;
}
