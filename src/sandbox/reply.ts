import type { IncomingMessage, ServerResponse } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { gzipSync } from 'node:zlib';
import type { FaultName, Faults } from './faults.ts';

/** A complete reply before it is sent. The faults of the request decide how much of it is sent, and how. */
export interface SandboxReply {
  readonly status: number;
  /** Names and values in turn, as in Node's `writeHead`. Repeated names and the case of names are kept. */
  readonly headers: readonly string[];
  readonly body: Buffer;
}

/**
 * Executes a request whose body was read, and returns the reply. Between reading and executing, a fault can delay the
 * request, fail it, or reset the connection.
 */
export type Execute = () => SandboxReply;

const STATUS_OF = {
  invalid_fault: 400,
  invalid_json: 400,
  unauthorized: 401,
  insufficient_funds: 402,
  not_found: 404,
  body_too_large: 413,
  validation_failed: 422,
  unknown_action: 422,
} as const;

export function jsonReply(status: number, body: unknown, headers: readonly string[] = []): SandboxReply {
  return {
    status,
    headers: ['Content-Type', 'application/json; charset=utf-8', ...headers],
    body: Buffer.from(JSON.stringify(body)),
  };
}

export function errorReply(
  code: keyof typeof STATUS_OF,
  message: string,
  headers: readonly string[] = [],
): SandboxReply {
  return errorEnvelope(STATUS_OF[code], code, message, headers);
}

function errorEnvelope(
  status: number,
  code: string,
  message: string,
  headers: readonly string[],
): SandboxReply {
  return jsonReply(status, { success: false, message, error: { code, message } }, headers);
}

const RETRY_AFTER = ['Retry-After', '1'];

/** The reply of a backend that fails before it executes. Undefined if no fault asks for one. */
export function replyWithoutExecuting(faults: Faults): SandboxReply | undefined {
  if (faults.has('500-before')) return failed(500);
  if (faults.has('503-before')) return failed(503, RETRY_AFTER);
  if (faults.has('429-before')) return failed(429, RETRY_AFTER);
  const status = faults.get('status');
  if (status === undefined) return undefined;
  return status < 400 ? jsonReply(status, { success: true, data: { executed: false } }) : failed(status);
}

/** The reply of a backend that executed: its own, or a failure if a fault asks for one. */
export function replyAfterExecuting(reply: SandboxReply, faults: Faults): SandboxReply {
  if (faults.has('500-after')) return failed(500);
  if (faults.has('503-after')) return failed(503, RETRY_AFTER);
  return reply;
}

function failed(status: number, headers: readonly string[] = []): SandboxReply {
  return errorEnvelope(status, 'sandbox_fault', `the request asked for status ${status}`, headers);
}

/** Applies the faults that change body and headers, to replies of any status. */
export function withFaultyContent(reply: SandboxReply, faults: Faults, acceptEncoding: string): SandboxReply {
  let changed = reply;
  const bytes = faults.get('huge');
  if (bytes !== undefined) changed = padded(changed, bytes);
  if (faults.has('binary')) changed = binary(changed);
  if (faults.has('set-cookie')) changed = withHeaders(changed, COOKIES);
  if (faults.has('duplicate-header')) changed = withHeaders(changed, REPEATED_NAME);
  if (faults.has('gzip-force') || (faults.has('gzip') && acceptsGzip(acceptEncoding)))
    changed = gzipped(changed);
  return changed;
}

const COOKIES = [
  'Set-Cookie',
  'sandbox_session=one; Path=/; HttpOnly',
  'Set-Cookie',
  'sandbox_theme=two; Path=/',
];
const REPEATED_NAME = ['X-SaNdBoX-Note', 'first', 'x-sAnDbOx-nOtE', 'second'];

function withHeaders(reply: SandboxReply, headers: readonly string[]): SandboxReply {
  return { ...reply, headers: [...reply.headers, ...headers] };
}

function padded(reply: SandboxReply, bytes: number): SandboxReply {
  const json = reply.body.toString();
  const ends = [`${json.slice(0, -1)},"padding":"`, '"}'] as const;
  const padding = bytes - Buffer.byteLength(ends.join(''));
  return { ...reply, body: padding < 0 ? reply.body : Buffer.from(ends.join('x'.repeat(padding))) };
}

function binary(reply: SandboxReply): SandboxReply {
  const headers = ['Content-Type', 'application/octet-stream'];
  return { ...reply, headers, body: Buffer.from(Array.from({ length: 256 }, (_, byte) => byte)) };
}

function gzipped(reply: SandboxReply): SandboxReply {
  const encoded = { ...reply, body: gzipSync(reply.body) };
  return withHeaders(encoded, ['Content-Encoding', 'gzip', 'Vary', 'Accept-Encoding']);
}

function acceptsGzip(acceptEncoding: string): boolean {
  return acceptEncoding.split(',').some((coding) => {
    const [name = '', ...parameters] = coding.split(';').map((part) => part.trim().toLowerCase());
    return (
      (name === 'gzip' || name === '*') && !parameters.some((parameter) => /^q=0(\.0*)?$/.test(parameter))
    );
  });
}

/** Waits for a number of milliseconds, and keeps no process alive. */
export const sleepFor = (milliseconds: number): Promise<void> =>
  sleep(milliseconds, undefined, { ref: false });

/** The request that is replied to, and what decides how its reply is sent. */
export interface Connection {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly faults: Faults;
}

type Send = (reply: SandboxReply, connection: Connection) => Promise<void> | void;

/** Faults of the group `delivery` that act after the execution. */
const FAULTY_SENDS: Partial<Record<FaultName, Send>> = {
  'execute-then-reset': (_, { request }) => reset(request),
  'execute-then-hang': () => undefined,
  truncate: (reply, connection) => sendHalf(reply, connection, ['Content-Length', String(reply.body.length)]),
  'truncate-chunked': (reply, connection) => sendHalf(reply, connection, ['Transfer-Encoding', 'chunked']),
  'truncate-unframed': (reply, connection) => {
    connection.response.useChunkedEncodingByDefault = false;
    sendHalf(reply, connection, ['Connection', 'close']);
  },
  drip: sendInPieces,
  garbage: (_, { request }) => void request.socket.end('\u0000\u0001\u0002 this is not HTTP\r\n\r\n'),
};

/** Sends the reply, as far as the request's faults allow. */
export async function send(reply: SandboxReply, connection: Connection): Promise<void> {
  const { faults, response } = connection;
  const hint = { link: '</sandbox.css>; rel=preload; as=style' };
  if (faults.has('early-hints')) response.writeEarlyHints(hint);
  const faulty = [...faults.keys()].map((name) => FAULTY_SENDS[name]).find((found) => found !== undefined);
  await (faulty ?? sendWhole)(reply, connection);
}

/** Sends RST and not FIN, so that the client sees a connection reset and not an ordinary close. */
export function reset(request: IncomingMessage): void {
  request.socket.resetAndDestroy();
}

function sendWhole(reply: SandboxReply, { response }: Connection): void {
  const bodiless = reply.status === 204 || reply.status === 304;
  const length = bodiless ? [] : ['Content-Length', String(reply.body.length)];
  response.writeHead(reply.status, [...reply.headers, ...length]);
  response.end(bodiless ? undefined : reply.body);
}

function sendHalf(reply: SandboxReply, { request, response }: Connection, framing: readonly string[]): void {
  response.writeHead(reply.status, [...reply.headers, ...framing]);
  const half = reply.body.subarray(0, Math.floor(reply.body.length / 2));
  // Destroying the socket before the kernel has the bytes would discard them.
  response.write(half, () => request.socket.destroy());
}

async function sendInPieces(reply: SandboxReply, { response, faults }: Connection): Promise<void> {
  const pieceBytes = Math.max(8, Math.ceil(reply.body.length / 64));
  response.writeHead(reply.status, [...reply.headers, 'Content-Length', String(reply.body.length)]);
  for (let start = 0; start < reply.body.length && !response.destroyed; start += pieceBytes) {
    if (start > 0) await sleepFor(faults.get('drip') ?? 0);
    response.write(reply.body.subarray(start, start + pieceBytes));
  }
  response.end();
}
