/** The merchant gets the same bytes that the backend sent, whatever the chunk boundaries. */
import type { Socket } from 'node:net';
import { expect, test } from 'vitest';
import { rawBackend } from '../../support/backend.ts';
import { payoutBody } from '../../support/payout.ts';
import { inFrontOf } from '../../support/stack.ts';
import { ALPHA, head, request, Wire } from '../../support/wire.ts';

const payout = JSON.stringify(payoutBody(1));

const ways: [string, string | Buffer][] = [
  ['passed through', head('GET /v3/echo', ALPHA)],
  ['executed', head('GET /v2/get_balance', ALPHA)],
  ['executed under a key', request('POST /v1/index.php', [ALPHA, 'x-service-idempotency: order-1'], payout)],
];

/** A backend that calls this for each request. */
const backendThat = (onRequest: (socket: Socket) => void): Promise<string> =>
  rawBackend((socket) => {
    socket.on('data', () => onRequest(socket));
  });

/** The answer without the headers that the gateway may add. */
const own = (lines: readonly string[]) => lines.filter((line) => !OF_THE_GATEWAY.test(line));
const OF_THE_GATEWAY =
  /^(?:content-length|date|connection|keep-alive|x-request-id|idempotent-(?:replayed|original-request-id)):/i;

test.each(ways)('%s: the fields are as they were written', async (_way, bytes) => {
  const fields = ['X-Two: 1', 'x-two: 2', '__proto__: x', 'Set-Cookie: a', 'Set-Cookie: b'];
  const said = `HTTP/1.1 200 OK\r\nContent-Length: 2\r\n${fields.join('\r\n')}\r\n\r\nok`;
  await inFrontOf(await backendThat((socket) => socket.write(said, 'latin1')), async ({ port }) => {
    const answer = await (await Wire.open(port)).write(bytes).answer();
    expect(own(answer.lines)).toEqual(fields);
  });
});

// Node decodes the value as UTF-8 if Content-Length comes before it, and throws if it is not valid UTF-8.
const names = [Buffer.from('ü.pdf').toString('latin1'), Buffer.from('€.pdf').toString('latin1'), '\xdc.pdf'];
for (const [way, bytes] of ways) {
  test.each(names)(`${way}: a file's name %j behind a length`, async (name) => {
    const field = `Content-Disposition: attachment; filename="${name}"`;
    await inFrontOf(
      await backendThat((socket) =>
        socket.write(`HTTP/1.1 200 OK\r\nContent-Length: 2\r\n${field}\r\n\r\nok`, 'latin1'),
      ),
      async ({ port }) => {
        // With a key the second answer is a replay.
        for (let i = 0; i < 2; i++) {
          const answer = await (await Wire.open(port)).write(bytes).answer();
          expect([answer.status, own(answer.lines), answer.body.toString()]).toEqual([200, [field], 'ok']);
        }
      },
    );
  });
}

test('passed through: a head that arrives before its body is unchanged', async () => {
  let backend: Socket | undefined;
  await inFrontOf(
    await backendThat((socket) => {
      backend = socket;
      socket.write('HTTP/1.1 200 Stra\xdfe\r\nX-City: K\xf6ln\r\nContent-Length: 2\r\n\r\n', 'latin1');
    }),
    async ({ port }) => {
      const wire = (await Wire.open(port)).write(head('GET /v3/echo', ALPHA));
      await wire.hears('\r\n\r\n');
      expect(wire.rest).toContain('HTTP/1.1 200 Stra\xdfe\r\nX-City: K\xf6ln\r\n');
      backend?.write('ok');
      expect((await wire.answer()).body.toString()).toBe('ok');
    },
  );
});
