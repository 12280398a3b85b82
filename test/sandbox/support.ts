import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { request as httpRequest, type IncomingHttpHeaders } from 'node:http';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { onTestFinished } from 'vitest';
import type { Transaction } from '../../src/sandbox/orders.ts';
import { createSandbox, type Sandbox, type SandboxOptions } from '../../src/sandbox/sandbox.ts';

export const ALPHA = { authorization: 'Bearer sk_sandbox_alpha' };
export const BRAVO = { authorization: 'Bearer sk_sandbox_bravo' };

export const MAIN = fileURLToPath(new URL('../../src/sandbox/main.ts', import.meta.url));

/** A sandbox on a free port. It is closed when the test ends. */
export async function openSandbox(options: SandboxOptions = {}): Promise<Sandbox> {
  const sandbox = await createSandbox({ port: 0, ...options });
  onTestFinished(() => sandbox.close());
  return sandbox;
}

/** A path for a ledger's file, in a folder that is removed when the test ends. */
export function ledgerFile(): string {
  const directory = mkdtempSync(join(tmpdir(), 'sandbox-'));
  onTestFinished(() => rmSync(directory, { recursive: true, force: true }));
  return join(directory, 'ledger.db');
}

export interface SandboxProcess {
  readonly child: ChildProcessWithoutNullStreams;
  readonly url: string;
  /** Resolves with the exit code or the signal. */
  readonly exited: Promise<number | NodeJS.Signals>;
}

/** A sandbox in a separate process. It is killed when the test ends. */
export async function spawnSandbox(...args: string[]): Promise<SandboxProcess> {
  const { child, exited } = spawnMain('--port', '0', ...args);
  const [line] = (await once(createInterface(child.stdout), 'line')) as [string];
  const ready = JSON.parse(line) as { sandbox: string; url: string };
  if (ready.sandbox !== 'listening') throw new Error(`unexpected first line: ${line}`);
  return { child, url: ready.url, exited };
}

export function spawnMain(...args: string[]): Pick<SandboxProcess, 'child' | 'exited'> {
  return spawnMainIn({}, ...args);
}

/** Like {@link spawnMain}, with more environment variables. */
export function spawnMainIn(
  env: NodeJS.ProcessEnv,
  ...args: string[]
): Pick<SandboxProcess, 'child' | 'exited'> {
  const child = spawn(process.execPath, [MAIN, ...args], { env: { ...process.env, ...env } });
  const exited = once(child, 'exit').then(([code, signal]) => (signal ?? code) as number | NodeJS.Signals);
  onTestFinished(() => void child.kill('SIGKILL'));
  return { child, exited };
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
  readonly balanced: boolean;
  readonly transactions: readonly Transaction[];
  readonly url: string;
  readonly rawHeaders: readonly (readonly [string, string])[];
}

export interface Answer {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly rawHeaders: string[];
  readonly body: Buffer;
  readonly json: AnswerBody;
}

export interface Ask {
  readonly method?: string;
  readonly headers?: Record<string, string>;
  readonly body?: string | Buffer;
}

/** One request on a new connection. Rejects if no complete answer arrives. */
export async function ask(url: string, { method = 'GET', headers = {}, body }: Ask = {}): Promise<Answer> {
  return await new Promise((resolve, reject) => {
    const request = httpRequest(url, { method, headers, agent: false }, (response) => {
      const chunks: Buffer[] = [];
      response.on('data', (chunk: Buffer) => chunks.push(chunk));
      response.on('error', reject);
      response.on('end', () => {
        const whole = Buffer.concat(chunks);
        resolve({
          status: response.statusCode ?? 0,
          headers: response.headers,
          rawHeaders: response.rawHeaders,
          body: whole,
          get json() {
            return JSON.parse(whole.toString());
          },
        });
      });
    });
    request.on('error', reject);
    request.end(body);
  });
}

export const WITHDRAW = { action: 'withdraw', amount: 100, bank_code: '044', account_number: '0123456789' };

export async function post(
  url: string,
  body: unknown,
  headers: Record<string, string> = ALPHA,
): Promise<Answer> {
  const text = typeof body === 'string' ? body : JSON.stringify(body);
  return await ask(`${url}/v1/index.php`, {
    method: 'POST',
    headers: {
      'content-type': 'application/json',
      'content-length': String(Buffer.byteLength(text)),
      ...headers,
    },
    body: text,
  });
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
  const all = {
    Host: 'sandbox',
    Authorization: ALPHA.authorization,
    'Content-Length': String(body.length),
    ...headers,
  };
  const lines = Object.entries(all).map(([name, value]) => `${name}: ${value}\r\n`);
  const sent = body.slice(0, body.length - cutBytes);
  return `POST /v1/index.php HTTP/1.1\r\n${lines.join('')}\r\n${sent}`;
}
