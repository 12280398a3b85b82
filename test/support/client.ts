import http from 'node:http';
import https from 'node:https';
import { payoutBody } from './payout.ts';

/** An answer, with its bytes and its header lines as received. */
export interface TestAnswer {
  status: number;
  headers: http.IncomingHttpHeaders;
  rawHeaders: string[];
  body: Buffer;
  /** The body parsed as JSON. @throws if it is not JSON */
  json<T = Record<string, unknown>>(): T;
}

export interface TestRequest {
  method?: string;
  path?: string;
  headers?: http.OutgoingHttpHeaders;
  body?: string | Buffer;
  agent?: http.Agent;
  signal?: AbortSignal;
  /** The address of this machine that the request comes from. */
  localAddress?: string;
  /** For https: the authority of the server's certificate. */
  ca?: Buffer;
}

/** One request on a new connection. */
export function send(
  url: string,
  { path = '/', body, agent, ...rest }: TestRequest = {},
): Promise<TestAnswer> {
  return new Promise((resolve, reject) => {
    const { request } = url.startsWith('https:') ? https : http;
    const req = request(new URL(path, url), { agent: agent ?? false, ...rest }, (res) => {
      const chunks: Buffer[] = [];
      res.on('data', (chunk: Buffer) => chunks.push(chunk));
      res.once('error', reject);
      res.once('end', () => {
        const bytes = Buffer.concat(chunks);
        resolve({
          status: res.statusCode ?? 0,
          headers: res.headers,
          rawHeaders: res.rawHeaders,
          body: bytes,
          json: () => JSON.parse(bytes.toString()),
        });
      });
    });
    req.once('error', reject);
    req.end(body);
  });
}

export interface Withdrawal extends Omit<TestRequest, 'method' | 'path' | 'body'> {
  key?: string;
  amount?: number;
  secret?: string;
  /** The sandbox's fault switch. */
  fault?: string;
}

/** A payout as the payment API defines it. */
export function withdraw(url: string, options: Withdrawal = {}): Promise<TestAnswer> {
  const { key, amount = 10, secret = 'sk_sandbox_alpha', fault, headers, ...rest } = options;
  return send(url, {
    ...rest,
    method: 'POST',
    path: '/v1/index.php',
    headers: {
      Authorization: `Bearer ${secret}`,
      'Content-Type': 'application/json',
      ...(key === undefined ? {} : { 'x-service-idempotency': key }),
      ...(fault === undefined ? {} : { 'X-Sandbox-Fault': fault }),
      ...headers,
    },
    body: JSON.stringify(payoutBody(amount)),
  });
}

export const isReplay = ({ headers }: TestAnswer): boolean => headers['idempotent-replayed'] === 'true';

/** The credentials of the sandbox's first merchant. */
export const BEARER = { Authorization: 'Bearer sk_sandbox_alpha' };
