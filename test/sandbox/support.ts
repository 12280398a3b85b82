import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { onTestFinished } from 'vitest';
import type { Transaction } from '../../src/sandbox/ledger.ts';
import { createSandbox, type Sandbox, type SandboxOptions } from '../../src/sandbox/sandbox.ts';
import { send, type TestAnswer, type TestRequest } from '../support/client.ts';
import { FAST_START, newFolder } from '../support/command.ts';
import { MAIN, track } from '../support/spawn.ts';

export const ALPHA = { authorization: 'Bearer sk_sandbox_alpha' };
export const BRAVO = { authorization: 'Bearer sk_sandbox_bravo' };

/** A sandbox on a free port. It is closed when the test ends. */
export async function openSandbox(options: SandboxOptions = {}): Promise<Sandbox> {
  const sandbox = await createSandbox({ port: 0, ...options });
  onTestFinished(() => sandbox.close());
  return sandbox;
}

export const ledgerFile = (): string => join(newFolder(), 'ledger.db');

export interface SandboxProcess {
  readonly child: ChildProcessWithoutNullStreams;
  readonly url: string;
  /** Resolves with the exit code or the signal. */
  readonly exited: Promise<number | NodeJS.Signals>;
}

/** A sandbox in a separate process. */
export async function spawnSandbox(...args: string[]): Promise<SandboxProcess> {
  const env = { ...process.env, ...FAST_START };
  const child = spawn(process.execPath, [MAIN, 'sandbox', '--port', '0', ...args], { env });
  track(child);
  const exited = once(child, 'exit').then(([code, signal]) => signal ?? code);
  const [line] = (await once(createInterface(child.stdout), 'line')) as [string];
  const ready = JSON.parse(line) as { sandbox: string; url: string };
  if (ready.sandbox !== 'listening') throw new Error(`unexpected first line: ${line}`);
  return { child, url: ready.url, exited };
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

export interface RawEnd {
  readonly bytes: string;
  /** Whether the connection was closed by FIN or by RST. */
  readonly how: 'fin' | 'reset';
}

/** Sends and receives raw bytes, for what an HTTP client hides or refuses to send. */
export class RawConnection {
  readonly socket: Socket;
  readonly ended: Promise<RawEnd>;

  constructor(port: number, bytes: string) {
    this.socket = connect(port, '127.0.0.1');
    this.socket.write(bytes, 'latin1');
    let received = '';
    let how: RawEnd['how'] = 'fin';
    this.socket.setEncoding('latin1').on('data', (chunk) => {
      received += chunk;
    });
    this.socket.on('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'ECONNRESET') how = 'reset';
    });
    this.ended = new Promise((resolve) => {
      this.socket.on('close', () => resolve({ bytes: received, how }));
    });
  }
}

/** The bytes of a withdraw with these headers, for a RawConnection. */
export function rawWithdraw(headers: Record<string, string>, { cutBytes = 0 } = {}): string {
  const body = JSON.stringify(WITHDRAW);
  const length = { 'Content-Length': String(body.length) };
  const lines = Object.entries({
    Host: 'sandbox',
    Authorization: ALPHA.authorization,
    ...length,
    ...headers,
  });
  const head = lines.map(([name, value]) => `${name}: ${value}\r\n`).join('');
  return `POST /v1/index.php HTTP/1.1\r\n${head}\r\n${body.slice(0, body.length - cutBytes)}`;
}
