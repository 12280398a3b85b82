import { hash } from 'node:crypto';
import { connect } from 'node:net';
import { Pool } from 'undici';
import type { Ended } from './history.ts';

/** A payout request: the same bytes at every retry. */
export interface Payout {
  action: 'withdraw' | 'checkout';
  merchant: string;
  key: string;
  /** In major units, as in the ledger. */
  amount: number;
  /** Ten digits that are unique to this payout, to detect answers that belong to another payout. */
  account: string;
}

export interface CallOptions {
  secret: string;
  fault?: string | undefined;
  /** Seconds that the gateway may let this request wait for another one with the same key. */
  preferWaitS?: number | undefined;
  timeoutMs: number;
  /** Disconnects after this time. */
  hangUpAfterMs?: number | undefined;
}

const TARGET = '/v1/index.php';
const HOP_BY_HOP = new Set(['connection', 'keep-alive', 'transfer-encoding']);

export const bodyOf = ({ action, amount, account }: Payout): string =>
  JSON.stringify({ action, amount, bank_code: '044', account_number: account, reference: account });

function headersOf(payout: Payout, { secret, fault, preferWaitS }: CallOptions): Record<string, string> {
  return {
    authorization: `Bearer ${secret}`,
    'content-type': 'application/json',
    'x-service-idempotency': payout.key,
    ...(fault === undefined ? {} : { 'x-sandbox-fault': fault }),
    ...(preferWaitS === undefined ? {} : { prefer: `wait=${preferWaitS}` }),
  };
}

/** A client of one gateway. It never retries by itself. */
export class Client {
  readonly #pool: Pool;
  readonly #port: number;

  constructor(port: number) {
    this.#port = port;
    this.#pool = new Pool(`http://127.0.0.1:${port}`, {
      connections: 256,
      pipelining: 1,
      // Shorter than the gateway's, so that the client never sends on a connection that the gateway is closing.
      keepAliveTimeout: 1000,
      keepAliveMaxTimeout: 1000,
    });
  }

  async pay(payout: Payout, options: CallOptions): Promise<Ended> {
    const { timeoutMs, hangUpAfterMs = timeoutMs } = options;
    try {
      const { statusCode, headers, body } = await this.#pool.request({
        method: 'POST',
        path: TARGET,
        headers: headersOf(payout, options),
        body: bodyOf(payout),
        signal: AbortSignal.timeout(Math.min(timeoutMs, hangUpAfterMs)),
      });
      return endedOf(payout, statusCode, headers, Buffer.from(await body.arrayBuffer()));
    } catch (error) {
      const { code, name } = error as NodeJS.ErrnoException;
      return { kind: 'no_answer', reason: code ?? name };
    }
  }

  /** Sends a part of the request, and resets the connection. */
  async payInPart(payout: Payout, options: CallOptions, part: number): Promise<Ended> {
    const body = bodyOf(payout);
    const fields = { host: 'gateway', 'content-length': String(body.length), ...headersOf(payout, options) };
    const lines = Object.entries(fields).map(([name, value]) => `${name}: ${value}\r\n`);
    const bytes = `POST ${TARGET} HTTP/1.1\r\n${lines.join('')}\r\n${body}`;
    return await new Promise((resolve) => {
      const socket = connect(this.#port, '127.0.0.1');
      socket.once('error', () => {});
      socket.once('connect', () => {
        socket.write(bytes.slice(0, Math.ceil(bytes.length * part)), () => socket.resetAndDestroy());
      });
      socket.once('close', () => resolve({ kind: 'no_answer', reason: 'hung up' }));
    });
  }

  async close(): Promise<void> {
    await this.#pool.destroy();
  }
}

/** Fields in which a replay differs from the first answer. */
const OF_THE_GATEWAY = new Set(['idempotent-replayed', 'idempotent-original-request-id', 'x-request-id']);

type Headers = Record<string, string | string[] | undefined>;

function endedOf(payout: Payout, status: number, headers: Headers, body: Buffer): Ended {
  const text = body.toString('latin1');
  const foreign = namesAnother(text, payout);
  if (headers['content-type'] === 'application/problem+json') {
    const { error } = JSON.parse(text) as { error: { code: string } };
    return { kind: 'problem', status, code: error.code, foreign };
  }
  const kept = Object.entries(headers).filter(([name]) => !HOP_BY_HOP.has(name) && !OF_THE_GATEWAY.has(name));
  const digest = hash('sha256', JSON.stringify([status, kept.sort(), text]));
  return { kind: 'result', status, digest, replayed: headers['idempotent-replayed'] === 'true', foreign };
}

/** Whether the answer has the account number of another payout. The sandbox puts one into every answer to a payout. */
function namesAnother(text: string, { account }: Payout): boolean {
  const named = /"account_number":"(\d+)"/.exec(text)?.[1];
  return named !== undefined && named !== account;
}
