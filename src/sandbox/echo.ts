import { createHash } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import { type Execution, jsonReply, type Pause } from './reply.ts';
import { digestBody, headerPairs, numberFrom, queryOf } from './request.ts';

/** Any method on /v3/echo: replies with the request as it was received. The body, of any size, is shown as its digest. */
export async function echoRoute(request: IncomingMessage): Promise<Execution> {
  const { bytes, sha256 } = await digestBody(request);
  return () =>
    jsonReply(200, {
      method: request.method,
      url: request.url,
      httpVersion: request.httpVersion,
      rawHeaders: headerPairs(request.rawHeaders),
      bodyBytes: bytes,
      bodySha256: sha256,
    });
}

/** GET /v3/stream?chunks=N&intervalMs=MS: sends N server-sent events, and flushes each of them. */
export async function sendStream(
  request: IncomingMessage,
  response: ServerResponse,
  pause: Pause,
): Promise<void> {
  const query = queryOf(request);
  const chunks = numberFrom(query, 'chunks', { fallback: 5, max: 100_000 });
  const intervalMs = numberFrom(query, 'intervalMs', { fallback: 100, max: 600_000 });
  response.writeHead(200, ['Content-Type', 'text/event-stream', 'Cache-Control', 'no-store']);
  response.flushHeaders();
  for (let chunk = 1; chunk <= chunks && !response.destroyed; chunk += 1) {
    if (chunk > 1) await pause(intervalMs);
    response.write(`data: chunk ${chunk}\n\n`);
  }
  response.end();
}

export const WEBSOCKET_PATH = '/v3/ws';

/** RFC 6455, section 1.3: the server appends this GUID to the client's key to show that it understood the handshake. */
const GUID = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11';

const OPCODE = { close: 0x8, ping: 0x9, pong: 0xa } as const;
const CLOSE = { protocolError: 1002, tooLarge: 1009 } as const;

/** /v3/ws: answers the WebSocket handshake and sends every message back unchanged. */
export function echoWebSocket(request: IncomingMessage, socket: Duplex, head: Buffer): void {
  // A client that resets its connection is not an error of the sandbox.
  socket.on('error', () => socket.destroy());
  const key = request.headers['sec-websocket-key'];
  if (key === undefined || request.headers['sec-websocket-version'] !== '13') {
    socket.end(
      'HTTP/1.1 400 Bad Request\r\nSec-WebSocket-Version: 13\r\nConnection: close\r\nContent-Length: 0\r\n\r\n',
    );
    return;
  }
  socket.write(handshake(key, request.headers['sec-websocket-protocol']));
  echoFrames(socket, head);
}

function handshake(key: string, protocols: string | undefined): string {
  const accept = createHash('sha1')
    .update(key + GUID)
    .digest('base64');
  const lines = [
    'HTTP/1.1 101 Switching Protocols',
    'Upgrade: websocket',
    'Connection: Upgrade',
    `Sec-WebSocket-Accept: ${accept}`,
  ];
  // A client that offers subprotocols closes the connection if the server selects none.
  const protocol = protocols?.split(',')[0]?.trim();
  if (protocol) lines.push(`Sec-WebSocket-Protocol: ${protocol}`);
  return `${lines.join('\r\n')}\r\n\r\n`;
}

function echoFrames(socket: Duplex, head: Buffer): void {
  let pending: Buffer = head;
  const drain = (): void => {
    for (let frame = readFrame(pending); frame !== undefined; frame = readFrame(pending)) {
      pending = pending.subarray(frame.bytes);
      if (!answerFrame(socket, frame)) return;
    }
  };
  socket.on('data', (chunk: Buffer) => {
    pending = Buffer.concat([pending, chunk]);
    drain();
  });
  socket.on('end', () => socket.end());
  drain();
}

interface Frame {
  /** FIN bit and opcode. They are sent back unchanged, so that the fragments of a message stay fragments. */
  readonly first: number;
  readonly payload: Buffer;
  readonly bytes: number;
  /** The close code, if the frame is refused. */
  readonly refused?: number;
}

/** The first frame in the buffer, or undefined until it is complete. Frames of 64 KiB and more are refused. */
function readFrame(buffer: Buffer): Frame | undefined {
  const [first, second] = buffer;
  if (first === undefined || second === undefined) return undefined;
  if (second < 0x80) return { first, payload: Buffer.alloc(0), bytes: 2, refused: CLOSE.protocolError };
  const short = second & 0x7f;
  if (short === 127) return { first, payload: Buffer.alloc(0), bytes: 2, refused: CLOSE.tooLarge };
  const at = short === 126 ? 4 : 2;
  if (buffer.length < at) return undefined;
  const length = short === 126 ? buffer.readUInt16BE(2) : short;
  if (buffer.length < at + 4 + length) return undefined;
  const mask = buffer.subarray(at, at + 4);
  const payload = Buffer.from(buffer.subarray(at + 4, at + 4 + length));
  for (const [index, byte] of payload.entries()) payload[index] = byte ^ (mask[index % 4] ?? 0);
  return { first, payload, bytes: at + 4 + length };
}

/** False after a close frame, which is the last one. */
function answerFrame(socket: Duplex, { first, payload, refused }: Frame): boolean {
  const opcode = first & 0x0f;
  if (refused !== undefined || opcode === OPCODE.close) {
    const reason = refused === undefined ? payload : Buffer.from([refused >> 8, refused & 0xff]);
    socket.end(frameOf(0x80 | OPCODE.close, reason));
    return false;
  }
  if (opcode === OPCODE.ping) socket.write(frameOf(0x80 | OPCODE.pong, payload));
  else if (opcode !== OPCODE.pong) socket.write(frameOf(first, payload));
  return true;
}

function frameOf(first: number, payload: Buffer): Buffer {
  const length = payload.length < 126 ? [payload.length] : [126, payload.length >> 8, payload.length & 0xff];
  return Buffer.concat([Buffer.from([first, ...length]), payload]);
}
