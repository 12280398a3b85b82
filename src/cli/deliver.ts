import { randomBytes } from 'node:crypto';
import { Executor } from '../backend/executor.ts';
import type { Config } from '../config/schema.ts';
import { Certificates } from '../gateway/certificates.ts';
import { ClientTls } from '../lib/certificate.ts';
import { systemClock } from '../lib/clock.ts';
import type { Exchange } from '../lib/exchange.ts';

/** The header by which the backend counts. Its value is new for each POST. */
const MARKER = 'X-Oncegate-Delivery';

/** What the backend does with the POST: proxies repeat after a broken connection, after a 503, or after both. */
const ENDS = ['reset', '503'] as const;

const MAX_ANSWER_BYTES = 1024;

/**
 * Sends POSTs that the backend must not answer well, and asks it how often each arrived: a proxy between gateway and backend that
 * repeats requests pays twice.
 *
 * @param path of the backend. `POST path?end=reset` counts the request by its marker and resets the connection, `POST path?end=503`
 * counts it and answers 503, and `GET path` answers with the count of the marker that it has, as `{"deliveries": 1}`
 */
export async function deliver(config: Config, path: string): Promise<{ ok: boolean; detail: string }> {
  return await withExecutor(config, MAX_ANSWER_BYTES, (executor) => countDeliveries(executor, path));
}

/** Calls the function with an executor of its own for the backend. */
export async function withExecutor<T>(
  { upstream }: Config,
  maxAnswerBytes: number,
  use: (executor: Executor) => Promise<T>,
): Promise<T> {
  const certificates = new Certificates({ clock: systemClock });
  const tls =
    upstream.tls &&
    new ClientTls(await certificates.open('upstream.tls', upstream.tls), upstream.tls.serverName);
  const executor = new Executor(upstream, maxAnswerBytes, systemClock, tls);
  try {
    return await use(executor);
  } finally {
    await executor.destroy();
    certificates.close();
  }
}

async function countDeliveries(executor: Executor, path: string): Promise<{ ok: boolean; detail: string }> {
  const ask = async (method: string, target: string, marker: string): Promise<Exchange> => {
    // Go's HTTP client repeats a POST without a body because it has this key.
    const headers = [MARKER, marker, 'Idempotency-Key', marker, 'Accept-Encoding', 'identity'];
    return await executor.send({ method, target, headers, body: Buffer.alloc(0) }, {});
  };
  for (const end of ENDS) {
    const marker = `oncegate-check-${randomBytes(8).toString('hex')}`;
    const sent = await ask('POST', `${path}?end=${end}`, marker);
    const answer = await ask('GET', path, marker);
    const count = countIn(answer);
    const what = `a POST that the backend ends by ${end === 'reset' ? 'a reset' : '503'}`;
    if (count === undefined)
      return failed(`GET ${path} does not say how often ${what} arrived (${saidOf(answer)})`);
    if (count === 0) return failed(`${what} did not arrive (${saidOf(sent)})`);
    if (count > 1)
      return failed(
        `${what} arrived ${count} times: something between the gateway and the backend repeats requests, and would pay twice`,
      );
  }
  return {
    ok: true,
    detail: 'a POST arrives once, also when the backend resets its connection or answers 503',
  };
}

export const failed = (detail: string) => ({ ok: false, detail });

function countIn(exchange: Exchange): number | undefined {
  if (exchange.kind !== 'complete' || exchange.response.status !== 200) return undefined;
  try {
    const { deliveries } = JSON.parse(exchange.response.body.toString());
    return Number.isSafeInteger(deliveries) ? deliveries : undefined;
  } catch {
    return undefined;
  }
}

export const saidOf = (exchange: Exchange): string => {
  if (exchange.kind === 'complete') return `status ${exchange.response.status}`;
  return exchange.kind === 'oversize' ? 'a large answer' : exchange.reason;
};
