/** A status below 100, or a control character in the reason phrase, threw where nobody caught it; a 101 was never answered. */
import { expect, test } from 'vitest';
import { rawBackend } from '../support/backend.ts';
import { openStack } from '../support/stack.ts';
import { ALPHA, codeOf, head, Wire } from '../support/wire.ts';

/** The answer to a request that is passed through to a backend which says this. */
async function answerTo(statusLine: string) {
  const url = await rawBackend((socket) => {
    socket.on('data', () => socket.write(`${statusLine}\r\nContent-Length: 2\r\n\r\nok`, 'latin1'));
  });
  const stack = await openStack({ upstream: { url } });
  try {
    const wire = await Wire.open(stack.port);
    return await wire.write(head('GET /v3/echo', ALPHA)).answer();
  } finally {
    await stack.close();
  }
}

test.each(['HTTP/1.1 099 Early', 'HTTP/1.1 000 ', 'HTTP/1.1 101 Switching'])('%j: 502', async (line) => {
  const answer = await answerTo(line);
  expect([answer.status, codeOf(answer)]).toEqual([502, 'outcome_unknown']);
});

test('101 with all that belongs to it, unasked: 502', async () => {
  const answer = await answerTo('HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket');
  expect([answer.status, codeOf(answer)]).toEqual([502, 'outcome_unknown']);
});

test.each(['O\x01K', 'O\x00K', 'O\x7fK', '', 'Stra\xdfe', 'Fine'])('reason %j: passed on', async (reason) => {
  const answer = await answerTo(`HTTP/1.1 200 ${reason}`);
  expect([answer.status, answer.body.toString()]).toEqual([200, 'ok']);
});

test('the fields are passed on as they were written', async () => {
  const answer = await answerTo(
    'HTTP/1.1 200 OK\r\nX-Two: 1\r\nx-two: 2\r\n__proto__: x\r\nSet-Cookie: a\r\nSet-Cookie: b',
  );
  const own = answer.lines.filter((line) => !/^(?:content-length|date|connection|keep-alive):/i.test(line));
  expect(own).toEqual(['X-Two: 1', 'x-two: 2', '__proto__: x', 'Set-Cookie: a', 'Set-Cookie: b']);
});
