/** A status below 100, or a control character in the reason phrase, caused an uncaught exception. A 101 was never answered. */
import { expect, test } from 'vitest';
import { rawBackend } from '../support/backend.ts';
import { inFrontOf } from '../support/stack.ts';
import { ALPHA, codeOf, head, Wire } from '../support/wire.ts';

/** The answer to a passed-through request if the backend sends these bytes. */
async function answerTo(said: string) {
  const url = await rawBackend((socket) => {
    socket.on('data', () => socket.write(said, 'latin1'));
  });
  return await inFrontOf(url, async ({ port }) => {
    const wire = await Wire.open(port);
    return await wire.write(head('GET /v3/echo', ALPHA)).answer();
  });
}

const OK = '\r\nContent-Length: 2\r\n\r\nok';

test.each([
  `HTTP/1.1 099 Early${OK}`,
  `HTTP/1.1 000 ${OK}`,
  `HTTP/1.1 101 Switching${OK}`,
  'HTTP/1.1 101 Switching\r\n\r\n',
  'HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n',
])('%j: 502', async (said) => {
  const answer = await answerTo(said);
  expect([answer.status, codeOf(answer)]).toEqual([502, 'outcome_unknown']);
});

test.each(['O\x01K', 'O\x00K', 'O\x7fK', '', 'Stra\xdfe', 'Fine'])('reason %j: passed on', async (reason) => {
  const answer = await answerTo(`HTTP/1.1 200 ${reason}${OK}`);
  expect([answer.status, answer.body.toString()]).toEqual([200, 'ok']);
});
