/** A status below 100, or a control character in the reason phrase, caused an uncaught exception. A 101 was never answered. */
import { expect, test } from 'vitest';
import { rawBackend } from '../support/backend.ts';
import { eachRowInTurn } from '../support/each-row.ts';
import { stackForTest } from '../support/stack.ts';
import { ALPHA, head, Wire } from '../support/wire.ts';

const OK = '\r\nContent-Length: 2\r\n\r\nok';
const UPGRADE = '\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n';
const refused = ['099 Early', '000 ', '101 Switching'].map((line) => `HTTP/1.1 ${line}${OK}`);
const switching = ['\r\n\r\n', UPGRADE].map((rest) => `HTTP/1.1 101 Switching${rest}`);
const passedOn = ['O\x01K', 'O\x00K', 'O\x7fK', '', 'Stra\xdfe', 'Fine'].map(
  (reason) => `HTTP/1.1 200 ${reason}${OK}`,
);
const rows = [
  ...[...refused, ...switching].map((said) => ({ said, status: 502, body: /"outcome_unknown"/ })),
  ...passedOn.map((said) => ({ said, status: 200, body: /^ok$/ })),
];

test('a passed-through request is answered, whatever the status line of the backend is', async () => {
  let says = '';
  const url = await rawBackend((socket) => void socket.on('data', () => socket.write(says, 'latin1')));
  const { port } = await stackForTest({ upstream: { url } });
  await eachRowInTurn(rows, async ({ said, status, body }) => {
    says = said;
    const wire = (await Wire.open(port)).write(head('GET /v3/echo', ALPHA));
    const answer = await wire.answer();
    expect(answer.status).toBe(status);
    expect(answer.body.toString()).toMatch(body);
  });
});
