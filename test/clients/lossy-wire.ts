import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';

export interface LossyWire {
  url: string;
  close(): Promise<void>;
}

/** A TCP proxy in front of a local port. Instead of passing on the first answer, it resets the client's connection. */
export async function openLossyWire(targetPort: number): Promise<LossyWire> {
  const sockets = new Set<Socket>();
  let hasLost = false;
  const server = createServer((client) => {
    const target = connect(targetPort, '127.0.0.1');
    for (const socket of [client, target]) {
      sockets.add(socket);
      socket.on('error', () => {});
      socket.once('close', () => {
        sockets.delete(socket);
        client.destroy();
        target.destroy();
      });
    }
    client.pipe(target);
    target.on('data', (bytes) => {
      if (hasLost) client.write(bytes);
      else client.resetAndDestroy();
      hasLost = true;
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    async close() {
      const closed = new Promise((resolve) => server.close(resolve));
      for (const socket of sockets) socket.destroy();
      await closed;
    },
  };
}
