import { join } from 'node:path';
import { expect } from 'vitest';
import type { Sandbox } from '../../src/sandbox/create-sandbox.ts';
import type { Transaction } from '../../src/sandbox/sandbox-ledger.ts';
import { send, type TestAnswer, type TestRequest } from '../support/client.ts';
import { newFolder } from '../support/command.ts';
import { type Begun, begin } from '../support/tour.ts';

export { openSandbox } from '../support/stack.ts';

import { ALPHA as BEARER, head, Wire } from '../support/wire.ts';

export const ALPHA = { authorization: 'Bearer sk_sandbox_alpha' };
export const BRAVO = { authorization: 'Bearer sk_sandbox_bravo' };

export const ledgerFile = (): string => join(newFolder(), 'ledger.db');

/** A sandbox in a separate process. */
export async function spawnSandbox(...args: string[]): Promise<Begun & { url: string }> {
  const running = begin(['sandbox', '--port', '0', ...args]);
  const [line = ''] = await running.printed(/^/);
  expect(JSON.parse(line)).toMatchObject({ sandbox: 'listening' });
  return { ...running, url: JSON.parse(line).url };
}

/** The members of all bodies that tests read. A single body has only some of them. */
export interface AnswerBody {
  readonly message: string;
  readonly error: { readonly code: string };
  readonly data: {
    readonly amount: number;
    readonly balance: number;
    readonly transaction_id: string;
    readonly session_id: string;
    readonly url: string;
  };
  readonly payouts: number;
  readonly transactions: readonly Transaction[];
  readonly rawHeaders: readonly (readonly [string, string])[];
}

export type Answer = Omit<TestAnswer, 'json'> & { readonly json: AnswerBody };

/** One request on a new connection. Rejects if no complete answer arrives. */
export async function ask(url: string, request: Omit<TestRequest, 'path'> = {}): Promise<Answer> {
  const { json, ...answer } = await send(url, { ...request, path: url });
  return Object.defineProperty(answer, 'json', { get: json }) as Answer;
}

export const WITHDRAW = { action: 'withdraw', amount: 100, bank_code: '044', account_number: '0123456789' };

export async function post(
  url: string,
  body: unknown,
  headers: Record<string, string> = ALPHA,
): Promise<Answer> {
  const text = typeof body === 'string' ? body : JSON.stringify(body);
  const length = { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) };
  return await ask(`${url}/v1/index.php`, { method: 'POST', headers: { ...length, ...headers }, body: text });
}

/** A connection on which such an order was begun, with these header lines. It closes after the answer. */
export async function rawWithdraw({ port }: Sandbox, fields: string[], bodyBytes?: number): Promise<Wire> {
  const body = JSON.stringify(WITHDRAW);
  const wire = await Wire.open(port);
  const lines = [`Content-Length: ${body.length}`, 'Connection: close', ...fields];
  return wire.write(head('POST /v1/index.php', BEARER, ...lines) + body.slice(0, bodyBytes));
}
