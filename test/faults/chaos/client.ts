import { hash } from 'node:crypto';
import { connect } from 'node:net';
import { Pool } from 'undici';
import type { Ended } from './history.ts';

/** A payout request: the same bytes at every retry. */
export interface Payout {
  merchant: string;
  key: string;
  /** The amount in major units, as in the ledger. */
  amount: number;
  /** Ten digits that are unique to this payout, to detect answers that belong to another payout. */
  account: string;
}

export interface CallOptions {
  fault?: string | undefined;
  /** Seconds that the gateway may let this request wait for another one with the same key. */
  preferWaitS?: number;
  /** Disconnects after this time. */
  hangUpAfterMs?: number;
  /** Sends only this part of the request, and resets the connection. */
  part?: number;
}

const TARGET = '/v1/index.php';
const TIMEOUT_MS = 8000;

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

  async pay(payout: Payout, secret: string, options: CallOptions): Promise<Ended> {
    const { fault, preferWaitS, hangUpAfterMs = TIMEOUT_MS, part } = options;
    const { amount, account } = payout;
    const order = {
      action: 'withdraw',
      amount,
      bank_code: '044',
      account_number: account,
      reference: account,
    };
    const sent = JSON.stringify(order);
    const fields = {
      authorization: `Bearer ${secret}`,
      'content-type': 'application/json',
      'content-length': String(sent.length),
      'x-service-idempotency': payout.key,
      ...(fault === undefined ? {} : { 'x-sandbox-fault': fault }),
      ...(preferWaitS === undefined ? {} : { prefer: `wait=${preferWaitS}` }),
    };
    if (part !== undefined) return await this.#sendPart(fields, sent, part);
    try {
      const { statusCode, headers, body } = await this.#pool.request({
        ...{ method: 'POST', path: TARGET, headers: fields, body: sent },
        signal: AbortSignal.timeout(hangUpAfterMs),
      });
      return endedOf(payout, statusCode, headers, Buffer.from(await body.arrayBuffer()));
    } catch (error) {
      const { code, name } = error as NodeJS.ErrnoException;
      return { kind: 'no_answer', reason: code ?? name };
    }
  }

  async #sendPart(fields: Record<string, string>, body: string, part: number): Promise<Ended> {
    const lines = Object.entries(fields).map(([name, value]) => `${name}: ${value}\r\n`);
    const bytes = `POST ${TARGET} HTTP/1.1\r\nhost: gateway\r\n${lines.join('')}\r\n${body}`;
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

/** Fields of the connection, and those in which a replay differs from the first answer. */
const LEFT_OUT = new Set([
  ...['connection', 'keep-alive', 'transfer-encoding'],
  ...['idempotent-replayed', 'idempotent-original-request-id', 'x-request-id'],
]);

type Headers = Record<string, string | string[] | undefined>;

function endedOf({ account }: Payout, status: number, headers: Headers, body: Buffer): Ended {
  const text = body.toString('latin1');
  // The sandbox puts the account number into every answer to a payout.
  const named = /"account_number":"(\d+)"/.exec(text)?.[1] ?? account;
  const foreign = named !== account;
  if (headers['content-type'] === 'application/problem+json') {
    const { error } = JSON.parse(text) as { error: { code: string } };
    return { kind: 'problem', status, code: error.code, foreign };
  }
  const kept = Object.entries(headers).filter(([name]) => !LEFT_OUT.has(name));
  const digest = hash('sha256', JSON.stringify([status, kept.sort(), text]));
  return { kind: 'result', status, digest, replayed: headers['idempotent-replayed'] === 'true', foreign };
}
