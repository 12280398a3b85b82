import { connect } from 'node:net';
import { until } from '../test/support/until.ts';

/** Resolves when a server accepts connections on a loopback port. */
export async function untilListening(port: number): Promise<void> {
  await until(() => takesConnections(port), 20_000);
}

function takesConnections(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1');
    socket.once('connect', () => resolve(true)).once('error', () => resolve(false));
    socket.once('connect', () => socket.destroy());
  });
}
