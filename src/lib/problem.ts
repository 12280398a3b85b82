import { type ServerResponse, STATUS_CODES } from 'node:http';
import { type Duplex, pipeline, type Readable } from 'node:stream';
import { hasBody } from './context.ts';
import type { BackendResponse } from './exchange.ts';
import { type Executed, type ProblemCode, type ProblemRow, problems } from './problem-table.ts';

const TYPE = 'urn:oncegate:problem:';

/** An answer of the gateway itself, in the form of RFC 9457. */
export interface Problem {
  readonly code: ProblemCode;
  readonly status: number;
  readonly title: string;
  /** One sentence for the merchant. Never contains a secret, a body or an account number. */
  readonly detail: string;
  /** Extra header fields, such as `Retry-After`. */
  readonly headers: Readonly<Record<string, string>>;
}

export const isProblem = (value: unknown): value is Problem =>
  typeof value === 'object' && value !== null && 'code' in value && 'detail' in value && 'title' in value;

export interface ProblemOptions {
  /** Overrides the usual status of the code; `outcome_unknown` also has 502 and 504. */
  status?: number;
  /** Overrides the usual `Retry-After` of the code. Whole seconds. */
  retryAfterS?: number;
  headers?: Record<string, string>;
}

export function problem(code: ProblemCode, detail: string, options: ProblemOptions = {}): Problem {
  const [status, , , title, soonS]: ProblemRow = problems[code];
  const { retryAfterS = soonS, headers = {} } = options;
  const retryAfter = retryAfterS !== undefined && { 'Retry-After': String(retryAfterS) };
  return { code, status: options.status ?? status, title, detail, headers: { ...headers, ...retryAfter } };
}

/**
 * What another gateway behind this one says of the execution, if the answer is that gateway's own. A code that is not known here says
 * `perhaps`.
 */
export function executedBehind({ status, headers, body }: BackendResponse): Executed | undefined {
  const isType = (text: string, i: number) =>
    i % 2 === 1 &&
    headers[i - 1]?.toLowerCase() === 'content-type' &&
    /^application\/problem\+json\b/i.test(text);
  if (status < 400 || !headers.some(isType)) return undefined;
  try {
    const { type } = JSON.parse(body.toString()) as { type?: unknown };
    if (typeof type !== 'string' || !type.startsWith(TYPE)) return undefined;
    const code = type.slice(TYPE.length);
    if (!Object.hasOwn(problems, code)) return 'perhaps';
    const [, executed] = problems[code as ProblemCode];
    return executed;
  } catch {
    return undefined;
  }
}

/** A problem as it is sent. */
export interface ProblemDocument {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

/** A document of RFC 9457 with these members. */
export function documentOf(
  status: number,
  members: object,
  more: Readonly<Record<string, string>> = {},
): ProblemDocument {
  const body = JSON.stringify(members);
  const length = String(Buffer.byteLength(body));
  const headers = { 'Content-Type': 'application/problem+json', 'Content-Length': length };
  return { status, headers: { ...headers, 'Cache-Control': 'no-store', ...more }, body };
}

/** Fits RFC 9457 and the payment API's envelope, because payment SDKs take a body without `error` for a success. */
export function problemDocument(p: Problem, requestId: string): ProblemDocument {
  const [, , retry] = problems[p.code];
  const members = {
    success: false,
    type: TYPE + p.code,
    title: p.title,
    status: p.status,
    detail: p.detail,
    error: { code: p.code, message: p.detail, retry, request_id: requestId },
  };
  return documentOf(p.status, members, { 'X-Request-Id': requestId, ...p.headers });
}

/**
 * Answers with a problem, unless a response has begun or the client has disconnected. Uses `setHeader` and `end`, because
 * middleware such as compression may have replaced these methods.
 */
export function sendProblem(res: ServerResponse, { status, headers, body }: ProblemDocument): void {
  if (res.headersSent || res.destroyed) return;
  res.statusCode = status;
  for (const [name, value] of Object.entries(headers)) res.setHeader(name, value);
  // Node would parse the rest of an unread body as the next request.
  if (hasBody(res.req) && !res.req.complete) res.shouldKeepAlive = false;
  res.end(body);
}

/** As {@link sendProblem}, but cuts off a response that has begun: a truncated one must not look complete. */
export function sendProblemOrCut(res: ServerResponse, document: ProblemDocument): void {
  if (res.headersSent) cutOff(res);
  else sendProblem(res, document);
}

/**
 * Cuts off a response that has begun. In HTTP/1.0, which nginx speaks by default, only the end of the connection shows where a response
 * without a length ends, so the connection is reset. That is possible on TCP only; in TLS, a missing close_notify shows the cut.
 */
export function cutOff(res: ServerResponse): void {
  const { socket, req } = res;
  const isTcp = socket?.remoteAddress !== undefined && !('encrypted' in socket);
  if (req.httpVersion === '1.0' && isTcp) socket.resetAndDestroy();
  res.destroy();
}

/** Streams the body of a response. If its source breaks, the response is cut off. */
export function streamOrCut(body: Readable, res: ServerResponse): void {
  // Before pipeline's own listener, which would close the connection in good order.
  body.once('error', () => cutOff(res));
  pipeline(body, res, () => {});
}

/** Answers on a socket for which Node has no response object, unless it was ended, and closes the connection. */
export function sendProblemOnSocket(socket: Duplex, { status, headers, body }: ProblemDocument): void {
  // Node has removed its own error listener. Without one, an error would end the process and leave its executions in doubt.
  socket.on('error', () => {});
  const fields = Object.entries({ ...headers, Connection: 'close' });
  const head = fields.map(([name, value]) => `${name}: ${value}\r\n`).join('');
  if (socket.writable) socket.end(`HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n${head}\r\n${body}`);
  endSoon(socket);
}

/**
 * Time for the client to read the last bytes. If a socket is closed while it has unread input, the connection is reset, and
 * the client loses those bytes.
 */
const LINGER_MS = 500;

/** Closes a connection gracefully, and forcibly after {@link LINGER_MS}. */
export function endSoon(socket: Duplex): void {
  socket.end();
  socket.resume();
  const timer = setTimeout(() => socket.destroy(), LINGER_MS);
  socket.once('close', () => clearTimeout(timer));
}
