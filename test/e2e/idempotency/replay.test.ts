import { randomUUID } from 'node:crypto';
import { gunzipSync } from 'node:zlib';
import { afterAll, describe, expect, it } from 'vitest';
import { rawBackend } from '../../support/backend.ts';
import { send, type TestAnswer, withdraw } from '../../support/client.ts';
import { eachRowInTurn } from '../../support/each-row.ts';
import { openStack, stackForTest } from '../../support/stack.ts';
import { endToEndLines } from './answers.ts';

const REPLAYED = ['Idempotent-Replayed', 'true'];

const match = { method: 'HEAD', path: '/v2/get_balance' };
const stack = await openStack({ operations: [{ name: 'probe', match, idempotency: { key: 'optional' } }] });
afterAll(() => stack.close());

describe('a replay of', () => {
  async function twice(fault: string): Promise<[TestAnswer, TestAnswer]> {
    const key = randomUUID();
    const first = await withdraw(stack.url, { key, fault });
    const again = await withdraw(stack.url, { key, fault });
    expect([first.status, again.status]).toEqual([201, 201]);
    expect(again.body).toEqual(first.body);
    expect(stack.sandbox.ledger.charges({ key }) + stack.sandbox.ledger.payouts({ key })).toBe(1);
    return [first, again];
  }

  it('a binary body is replayed byte for byte', async () => {
    const [first, again] = await twice('binary');
    expect([...again.body]).toEqual(Array.from({ length: 256 }, (_, byte) => byte));
    expect(again.headers['content-type']).toBe('application/octet-stream');
    expect(endToEndLines(again)).toEqual([...endToEndLines(first), REPLAYED]);
  });

  it('a body that the backend compressed unasked is replayed byte for byte, with its Content-Encoding', async () => {
    const [first, again] = await twice('gzip-force');
    expect(again.headers).toMatchObject({ 'content-encoding': 'gzip', vary: 'Accept-Encoding' });
    expect(JSON.parse(gunzipSync(again.body).toString())).toMatchObject({ success: true });
    expect(endToEndLines(again)).toEqual([...endToEndLines(first), REPLAYED]);
  });

  it('a result is replayed without its cookies, which belong to the first request', async () => {
    const [first, again] = await twice('set-cookie');
    expect(first.headers['set-cookie']).toHaveLength(2);
    const uncooked = endToEndLines(first).filter(([name]) => name !== 'Set-Cookie');
    expect(endToEndLines(again)).toEqual([...uncooked, REPLAYED]);
  });

  it('there is none of HEAD, which has the Content-Length of GET', async () => {
    const headers = { Authorization: 'Bearer sk_sandbox_alpha', 'x-service-idempotency': randomUUID() };
    const ask = (method: string) => send(stack.url, { method, path: '/v2/get_balance', headers });
    const whole = await ask('GET');
    for (const _ of ['first', 'second']) {
      const probe = await ask('HEAD');
      expect([probe.status, probe.body.length]).toEqual([200, 0]);
      expect(probe.headers['content-length']).toBe(`${whole.body.length}`);
      expect(probe.headers).not.toHaveProperty('idempotent-replayed');
    }
    expect(stack.sandbox.requests.ofPath('HEAD /v2/get_balance')).toBe(2);
  });
});

interface Said {
  what: string;
  head: string[];
  body?: string;
  /** What the merchant gets. */
  lines: [string, string][];
  text: string;
}

const OK = 'HTTP/1.1 200 OK';
const saying: Said[] = [
  {
    what: 'chunks become a length',
    head: [OK, 'Transfer-Encoding: chunked'],
    body: '3\r\nabc\r\n4;ext=1\r\ndefg\r\n0\r\nX-Trailer: 1\r\n\r\n',
    lines: [['Content-Length', '7']],
    text: 'abcdefg',
  },
  {
    what: 'a body that ends with the connection gets a length',
    head: ['HTTP/1.0 200 OK', 'Content-Type: application/json'],
    body: '{"until":"the end"}',
    lines: [
      ['Content-Type', 'application/json'],
      ['Content-Length', '19'],
    ],
    text: '{"until":"the end"}',
  },
  {
    what: 'an empty body has the length 0',
    head: ['HTTP/1.1 202 Accepted', 'Content-Length: 0'],
    lines: [['Content-Length', '0']],
    text: '',
  },
];

it('the first answer and its replay have what the backend said', async () => {
  let said: Buffer = Buffer.alloc(0);
  let requests = 0;
  const backend = await rawBackend(
    (socket) =>
      void socket.once('data', () => {
        requests++;
        socket.end(said);
      }),
  );
  const { url } = await stackForTest({ upstream: { url: backend } });
  await eachRowInTurn(saying, async ({ head, body = '', lines, text }) => {
    said = Buffer.from(`${head.join('\r\n')}\r\n\r\n${body}`, 'latin1');
    const [key, before] = [randomUUID(), requests];
    const first = await withdraw(url, { key });
    expect([first.body.toString(), endToEndLines(first)]).toEqual([text, lines]);
    const again = await withdraw(url, { key });
    expect([again.status, again.body.toString()]).toEqual([first.status, text]);
    const kept = endToEndLines(again).filter(([name]) => name !== 'Idempotent-Replayed');
    expect([again.headers['idempotent-replayed'], kept]).toEqual(['true', lines]);
    expect(requests).toBe(before + 1);
  });
});
