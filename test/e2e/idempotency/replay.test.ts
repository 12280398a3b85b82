import { randomUUID } from 'node:crypto';
import { gunzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { send, type TestAnswer, withdraw } from '../../support/client.ts';
import { startRecordingBackend } from '../../support/recording-backend.ts';
import type { Stack } from '../../support/stack.ts';
import { openStackOn, storeKinds } from '../../support/stores.ts';
import { endToEndLines, idsOf } from './answers.ts';

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const REPLAYED = ['Idempotent-Replayed', 'true'];

describe.each(storeKinds)('on %s, a replay of', (kind) => {
  let stack: Stack;
  beforeAll(async () => {
    stack = await openStackOn(kind);
  });
  afterAll(() => stack?.close());

  async function twice(fault: string): Promise<[TestAnswer, TestAnswer]> {
    const key = randomUUID();
    const first = await withdraw(stack.url, { key, fault });
    const again = await withdraw(stack.url, { key, fault });
    expect([first.status, again.status]).toEqual([201, 201]);
    expect(again.body).toEqual(first.body);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    expect(idsOf(first)).toEqual({ own: [expect.stringMatching(UUID)], first: [] });
    expect(idsOf(again)).toEqual({ own: [expect.stringMatching(UUID)], first: idsOf(first).own });
    expect(idsOf(again).own).not.toEqual(idsOf(first).own);
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
    expect(again.headers).not.toHaveProperty('set-cookie');
    const uncooked = endToEndLines(first).filter(([name]) => name !== 'Set-Cookie');
    expect(endToEndLines(again)).toEqual([...uncooked, REPLAYED]);
  });

  it('a header on two lines is replayed with both, in their order and case', async () => {
    const [, again] = await twice('duplicate-header');
    const lines = endToEndLines(again).filter(([name]) => name.toLowerCase() === 'x-sandbox-note');
    expect(lines).toEqual([
      ['X-SaNdBoX-Note', 'first'],
      ['x-sAnDbOx-nOtE', 'second'],
    ]);
  });

  it('a large body below the limit is replayed byte for byte', async () => {
    const [first] = await twice('huge=1000000');
    expect(first.body).toHaveLength(1_000_000);
  });
});

interface Wire {
  what: string;
  head: string[];
  body?: string;
  /** The body that the merchant gets. */
  lines: [string, string][];
  text: string;
}

const wires: Wire[] = [
  {
    what: 'fields of the connection are left out',
    head: [
      'HTTP/1.1 200 OK',
      'X-Kept: 1',
      'Connection: close, X-Nominated',
      'X-Nominated: 1',
      'Keep-Alive: timeout=77',
      'Proxy-Authenticate: Basic',
      'Proxy-Connection: close',
      'TE: trailers',
      'Trailer: X-After',
      'Upgrade: h2c',
      'Content-Length: 2',
    ],
    body: 'ok',
    lines: [
      ['X-Kept', '1'],
      ['Content-Length', '2'],
    ],
    text: 'ok',
  },
  {
    what: 'chunks become a length',
    head: ['HTTP/1.1 200 OK', 'Transfer-Encoding: chunked', 'X-Kept: 1'],
    body: '3\r\nabc\r\n4;ext=1\r\ndefg\r\n0\r\nX-Trailer: 1\r\n\r\n',
    lines: [
      ['X-Kept', '1'],
      ['Content-Length', '7'],
    ],
    text: 'abcdefg',
  },
  {
    what: 'a body that ends with the connection gets a length',
    head: ['HTTP/1.0 200 OK', 'X-Kept: 1'],
    body: 'until the end',
    lines: [
      ['X-Kept', '1'],
      ['Content-Length', '13'],
    ],
    text: 'until the end',
  },
  {
    what: 'an empty body has the length 0',
    head: ['HTTP/1.1 202 Accepted', 'Content-Length: 0'],
    lines: [['Content-Length', '0']],
    text: '',
  },
  {
    what: '204 has neither body nor length',
    head: ['HTTP/1.1 204 No Content', 'X-Kept: 1'],
    lines: [['X-Kept', '1']],
    text: '',
  },
  {
    what: 'informational answers ahead of it are none of the result',
    head: ['HTTP/1.1 103 Early Hints', 'X-Early: 1', '', 'HTTP/1.1 200 OK', 'Content-Length: 2'],
    body: 'ok',
    lines: [['Content-Length', '2']],
    text: 'ok',
  },
  {
    what: 'bytes beyond ASCII in a header stay',
    head: ['HTTP/1.1 200 OK', 'X-Name: caf\xe9', 'Content-Length: 2'],
    body: 'ok',
    lines: [
      ['X-Name', 'caf\xe9'],
      ['Content-Length', '2'],
    ],
    text: 'ok',
  },
];

it.each(wires)(
  'of what the backend sent, $what: first and replayed',
  async ({ head, body = '', lines, text }) => {
    const answer = Buffer.from(`${head.join('\r\n')}\r\n\r\n${body}`, 'latin1');
    await using backend = await startRecordingBackend(answer);
    const stack = await openStackOn('sqlite', { upstream: { url: backend.url } });
    try {
      const key = randomUUID();
      const first = await withdraw(stack.url, { key });
      expect([first.body.toString(), endToEndLines(first)]).toEqual([text, lines]);
      const again = await withdraw(stack.url, { key });
      expect(again.headers['idempotent-replayed']).toBe('true');
      const kept = endToEndLines(again).filter(([name]) => name !== 'Idempotent-Replayed');
      expect([again.body.toString(), kept]).toEqual([text, lines]);
      expect(again.status).toBe(first.status);
      expect(backend.received).toHaveLength(1);
    } finally {
      await stack.close();
    }
  },
);

it('an answer to HEAD has the Content-Length of GET and no body, and ignores a key', async () => {
  const match = { method: 'HEAD', path: '/v2/get_balance' };
  const stack = await openStackOn('sqlite', {
    operations: [{ name: 'probe', match, idempotency: { key: 'optional' } }],
  });
  try {
    const key = randomUUID();
    const headers = { Authorization: 'Bearer sk_sandbox_alpha', 'x-service-idempotency': key };
    const whole = await send(stack.url, { path: match.path, headers });
    for (const _ of ['first', 'second']) {
      const probe = await send(stack.url, { ...match, headers });
      expect([probe.status, probe.body.length]).toEqual([200, 0]);
      expect(probe.headers['content-length']).toBe(String(whole.body.length));
      expect(probe.headers).not.toHaveProperty('idempotent-replayed');
    }
    expect(stack.sandbox.requests.ofPath('HEAD /v2/get_balance')).toBe(2);
    expect(stack.sandbox.ledger.payouts()).toBe(0);
  } finally {
    await stack.close();
  }
});
