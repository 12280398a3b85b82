import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { onTestFinished } from 'vitest';

const BODY = '{"success":true,"data":{"id":"wd_1"}}';
const ANSWER = Buffer.from(
  `HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: ${BODY.length}\r\n\r\n${BODY}`,
);

/** A backend that answers payouts as fast as possible, and counts them; closed after the test. */
export async function openRawBackend(): Promise<{ url: string; requests(): number }> {
  const sockets = new Set<Socket>();
  let requests = 0;
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.setNoDelay(true).on('error', () => {});
    socket.once('close', () => sockets.delete(socket));
    let rest = '';
    socket.on('data', (chunk) => {
      rest += chunk.toString('latin1');
      // The last byte of a request's body is its only closing brace.
      for (let end = rest.indexOf('}'); end >= 0; end = rest.indexOf('}')) {
        rest = rest.slice(end + 1);
        requests++;
        socket.write(ANSWER);
      }
    });
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  onTestFinished(async () => {
    for (const socket of sockets) socket.destroy();
    await new Promise((resolve) => server.close(resolve));
  });
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, requests: () => requests };
}
