import type { IncomingMessage, ServerResponse } from 'node:http';
import type { FaultName, Faults } from './faults.ts';
import type { Reply } from './reply.ts';

/** Waits so many milliseconds; rejects when the sandbox is closed meanwhile. */
export type Pause = (milliseconds: number) => Promise<unknown>;

export interface Line {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly faults: Faults;
  readonly pause: Pause;
}

type Deliver = (reply: Reply, line: Line) => Promise<void> | void;

/** The faults of the wire that come after the execution. */
const DELIVERIES: Partial<Record<FaultName, Deliver>> = {
  'execute-then-reset': (_, { request }) => reset(request),
  'execute-then-hang': () => undefined,
  truncate: (reply, line) => sendHalf(reply, line, ['Content-Length', String(reply.body.length)]),
  'truncate-chunked': (reply, line) => sendHalf(reply, line, ['Transfer-Encoding', 'chunked']),
  drip: sendInPieces,
  garbage: (_, { request }) => void request.socket.end('\u0000\u0001\u0002 this is no HTTP\r\n\r\n'),
};

/** Sends the answer, or what the faults leave of it. */
export async function deliver(reply: Reply, line: Line): Promise<void> {
  const hint = { link: '</sandbox.css>; rel=preload; as=style' };
  if (line.faults.has('early-hints')) line.response.writeEarlyHints(hint);
  const faulty = [...line.faults.keys()].map((name) => DELIVERIES[name]).find((found) => found !== undefined);
  await (faulty ?? sendWhole)(reply, line);
}

/** RST instead of FIN: the other side sees a connection that was torn down, not one that ended. */
export function reset(request: IncomingMessage): void {
  request.socket.resetAndDestroy();
}

function sendWhole(reply: Reply, { response }: Line): void {
  const bodiless = reply.status === 204 || reply.status === 304;
  const length = bodiless ? [] : ['Content-Length', String(reply.body.length)];
  response.writeHead(reply.status, [...reply.headers, ...length]);
  response.end(bodiless ? undefined : reply.body);
}

function sendHalf(reply: Reply, { request, response }: Line, framing: readonly string[]): void {
  response.writeHead(reply.status, [...reply.headers, ...framing]);
  const half = reply.body.subarray(0, Math.floor(reply.body.length / 2));
  // Only once the half is with the kernel: destroyed earlier, the client would get nothing of it.
  response.write(half, () => request.socket.destroy());
}

async function sendInPieces(reply: Reply, { response, faults, pause }: Line): Promise<void> {
  const pieceBytes = Math.max(8, Math.ceil(reply.body.length / 64));
  response.writeHead(reply.status, [...reply.headers, 'Content-Length', String(reply.body.length)]);
  for (let start = 0; start < reply.body.length && !response.destroyed; start += pieceBytes) {
    if (start > 0) await pause(faults.get('drip') ?? 0);
    response.write(reply.body.subarray(start, start + pieceBytes));
  }
  response.end();
}
