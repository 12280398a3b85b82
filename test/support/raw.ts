import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { payoutBody } from './payout.ts';

export interface RawAnswer {
  status: number;
  headers: Record<string, string>;
  body: Buffer;
}

/** A connection on which a test writes raw bytes. Its errors are ignored: they only close it. */
export async function rawConnection(port: number): Promise<Socket> {
  const socket = connect(port, '127.0.0.1');
  await once(socket, 'connect');
  socket.on('error', () => {});
  return socket;
}

/** Resolves when a connection is closed, in order or by a reset. `once` would reject with the reset. */
export const closed = (socket: Duplex): Promise<unknown> =>
  new Promise((resolve) => socket.once('close', resolve));

/** Sends the bytes, and reads the answers until the other side ends the connection. */
export async function rawExchange(port: number, bytes: string | Buffer): Promise<RawAnswer[]> {
  const socket = await rawConnection(port);
  socket.write(bytes);
  return await answersOn(socket);
}

/** Everything that is received on a connection until it closes. */
export async function answersOn(socket: Socket): Promise<RawAnswer[]> {
  const chunks: Buffer[] = [];
  socket.on('data', (chunk: Buffer) => chunks.push(chunk));
  await closed(socket);
  return [...answersIn(Buffer.concat(chunks))];
}

function* answersIn(bytes: Buffer): Generator<RawAnswer> {
  for (let rest = bytes; rest.length > 0; ) {
    const end = rest.indexOf('\r\n\r\n');
    if (end < 0) throw new Error(`no whole answer: ${rest.toString('latin1')}`);
    const [first = '', ...lines] = rest.subarray(0, end).toString('latin1').split('\r\n');
    const pairs = lines.map((line) => line.split(/:\s*(.*)/s));
    const headers = Object.fromEntries(pairs.map(([name = '', value = '']) => [name.toLowerCase(), value]));
    const bodyEnd = end + 4 + Number(headers['content-length'] ?? 0);
    yield { status: Number(first.split(' ')[1]), headers, body: rest.subarray(end + 4, bodyEnd) };
    rest = rest.subarray(bodyEnd);
  }
}

export interface RawPayout {
  /** Header lines after the usual ones; a value may hold any byte. */
  lines?: string[];
  amount?: number;
  target?: string;
  /** Instead of the usual body and its length. */
  body?: string | Buffer;
}

/** The bytes of a payout, one character a byte. The connection closes after the answer unless a line says otherwise. */
export function payoutBytes({ lines = [], amount = 10, target = '/v1/index.php', body }: RawPayout = {}) {
  const bytes = Buffer.from(body ?? JSON.stringify(payoutBody(amount)));
  const head = [
    `POST ${target} HTTP/1.1`,
    'Host: gateway.test',
    'Authorization: Bearer sk_sandbox_alpha',
    'Content-Type: application/json',
    `Content-Length: ${bytes.length}`,
    ...(lines.some((line) => line.startsWith('Connection:')) ? [] : ['Connection: close']),
    ...lines,
  ];
  return Buffer.concat([Buffer.from(`${head.join('\r\n')}\r\n\r\n`, 'latin1'), bytes]);
}
