import { afterAll, expect, test } from 'vitest';
import { eachRowInTurn } from '../../support/each-row.ts';
import { expectNothingSent } from '../../support/nothing-sent.ts';
import { openStack } from '../../support/stack.ts';
import {
  ALPHA,
  chunk,
  codeOf,
  head,
  LAST_CHUNK,
  request,
  Wire,
  type WireAnswer,
} from '../../support/wire.ts';

const stack = await openStack();
afterAll(() => stack.close());

const METHODS = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'PROPFIND', 'QUERY'];

const framingOf = (answer: WireAnswer) =>
  answer
    .json<{ rawHeaders: [string, string][] }>()
    .rawHeaders.filter(([name]) => /^(?:content-length|transfer-encoding)$/i.test(name))
    .map(([name, value]) => `${name.toLowerCase()}: ${value}`);

const INSIDE = chunk('hello') + chunk(' ') + chunk('GET /v3/smuggled HTTP/1.1\r\n\r\n') + LAST_CHUNK;
const CHUNKED = 'Transfer-Encoding: chunked';

test.each<[string, (line: string) => string | Buffer, bodyBytes: number, framing: string[]]>([
  ['a chunked body', (line) => head(line, ALPHA, CHUNKED) + INSIDE, 35, ['transfer-encoding: chunked']],
  ['a body of known length', (line) => request(line, [ALPHA], 'hello'), 5, ['content-length: 5']],
  ['no body', (line) => head(line, ALPHA), 0, []],
])(
  'the backend gets every method with %s, and the next request is the next request',
  async (_body, bytes, bodyBytes, framing) => {
    await eachRowInTurn(METHODS, String, async (method) => {
      const wire = await Wire.open(stack.port);
      wire.write(bytes(`${method} /v3/echo?1`)).write(head('GET /v3/echo?2', ALPHA));
      const first = await wire.answer();
      expect(first.json()).toMatchObject({ method, url: '/v3/echo?1', bodyBytes });
      expect(framingOf(first).filter((line) => line !== 'content-length: 0')).toEqual(framing);
      expect((await wire.answer()).json()).toMatchObject({ method: 'GET', url: '/v3/echo?2', bodyBytes: 0 });
    });
    expect(stack.sandbox.requests.ofPath('GET /v3/smuggled')).toBe(0);
  },
);

test('TRACE is refused before anything else: a backend would answer with the gateway’s own credential', async () => {
  await expectNothingSent(stack, async () => {
    for (const lines of [[ALPHA], [], [ALPHA, 'Host: b'], [ALPHA, 'x-service-idempotency: traced']]) {
      const wire = await Wire.open(stack.port);
      const answer = await wire.write(head('TRACE /v3//echo', ...lines)).answer();
      expect([answer.status, codeOf(answer)]).toEqual([405, 'method_not_allowed']);
      expect(answer.headers.allow).toEqual(['GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS']);
    }
  });
});
