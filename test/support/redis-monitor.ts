import type { Socket } from 'node:net';
import { createInterface } from 'node:readline';
import { rawConnection } from './raw.ts';

/** A command as MONITOR shows it. */
export interface SeenCommand {
  /** The command in lower case. */
  name: string;
  /** The arguments, as MONITOR escapes them. */
  args: string[];
  /** Address of the client. */
  client: string;
}

/** For example `+1795468185.025843 [0 127.0.0.1:44172] "set" "key" "value"`. */
const LINE = /^\+[\d.]+ \[\d+ (?<client>\S+)\] "(?<command>.*)"$/;

/**
 * Calls `onCommand` for each command that a client sends to Redis from now on, in the order of their execution; not for
 * the commands within scripts. Ends when the returned socket is destroyed, or the server stops.
 *
 * Not by `monitor()` of ioredis, which fails when a command is in the same packet as the answer to MONITOR.
 */
export async function monitorRedis(port: number, onCommand: (command: SeenCommand) => void): Promise<Socket> {
  const socket = await rawConnection(port);
  const { promise: begun, resolve, reject } = Promise.withResolvers<void>();
  createInterface(socket)
    .on('line', (line) => {
      if (line === '+OK') return resolve();
      const { client = '', command = '' } = LINE.exec(line)?.groups ?? {};
      if (!client) return reject(new Error(`not a line of MONITOR: ${line}`));
      if (client === 'lua') return;
      const [name = '', ...args] = command.split('" "');
      onCommand({ name: name.toLowerCase(), args, client });
    })
    .on('close', () => reject(new Error('the server closed the connection')));
  socket.write('MONITOR\r\n');
  await begun;
  return socket;
}
