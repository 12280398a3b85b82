import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { Wire, type WireAnswer } from './wire.ts';

/** Lines of one name are joined, as Node's client joins them. */
export type RawAnswer = Omit<WireAnswer, 'headers'> & { headers: Record<string, string> };

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
  const wire = new Wire(socket);
  const answers: RawAnswer[] = [];
  await wire.ended;
  while (wire.rest !== '') {
    const answer = await wire.answer();
    const headers = Object.entries(answer.headers).map(([name, values]) => [name, values.join(', ')]);
    answers.push({ ...answer, headers: Object.fromEntries(headers) });
  }
  return answers;
}
