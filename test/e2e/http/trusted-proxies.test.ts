import { once } from 'node:events';
import { connect } from 'node:net';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { openStack, type Stack } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, head, request as whole } from '../../support/wire.ts';

/** All of 127.0.0.0/8 is this machine, so a test can be the client, a proxy, or somebody else. */
const PROXY = '127.0.0.2';
const STRANGER = '127.0.0.9';

let stack: Stack;
beforeAll(async () => {
  stack = await openStack({
    listen: { host: '127.0.0.1', port: 0, trustedProxies: [PROXY, '192.0.2.0/24'] },
  });
});
afterAll(() => stack.close());

interface Seen {
  /** `client` in the log line. */
  client: unknown;
  /** The fields that the backend got, by lower-case name. */
  fields: Record<string, string>;
}

/** What log and backend see of a request from this address. */
async function seen(from: string, ...fields: string[]): Promise<Seen> {
  const lines = stack.log.length;
  const answer = await raw(from, head('GET /v3/echo', ALPHA, 'Connection: close', ...fields));
  const { rawHeaders } = JSON.parse(answer.slice(answer.indexOf('{'), answer.lastIndexOf('}') + 1));
  const line = await until(() => stack.log.slice(lines).find(({ msg }) => msg === 'request'));
  const got = rawHeaders.map(([name, value]: [string, string]) => [name.toLowerCase(), value]);
  return { client: line.client, fields: Object.fromEntries(got) };
}

async function raw(from: string, bytes: string | Buffer): Promise<string> {
  const socket = connect({ port: stack.port, host: '127.0.0.1', localAddress: from });
  let text = '';
  socket.on('data', (data) => {
    text += data.toString('latin1');
  });
  await once(socket, 'connect');
  socket.write(bytes);
  await once(socket, 'close');
  return text;
}

const CLAIMS = [
  ...['X-Forwarded-For: 203.0.113.7', 'X-Forwarded-Proto: https', 'X-Forwarded-Host: pay.test'],
  ...['X-Forwarded-Port: 443', 'X-Real-IP: 203.0.113.7', 'Forwarded: for=203.0.113.7'],
];

describe('behind trusted proxies', () => {
  it('somebody else is not believed', async () => {
    const { client, fields } = await seen(STRANGER, ...CLAIMS);
    expect(client).toBe(STRANGER);
    expect(fields).toMatchObject({
      'x-forwarded-for': STRANGER,
      'x-forwarded-proto': 'http',
      'x-forwarded-host': 'gateway.test',
    });
    for (const name of ['x-forwarded-port', 'x-real-ip', 'forwarded'])
      expect(fields).not.toHaveProperty(name);
  });

  it('a proxy is believed about the client, and about how the client called it', async () => {
    const { client, fields } = await seen(PROXY, ...CLAIMS);
    expect(client).toBe('203.0.113.7');
    expect(fields).toMatchObject({
      'x-forwarded-for': `203.0.113.7, ${PROXY}`,
      'x-forwarded-proto': 'https',
      'x-forwarded-host': 'pay.test',
      'x-forwarded-port': '443',
    });
    expect(fields).not.toHaveProperty('forwarded');
  });

  it.each([
    ['the client’s own claim', ['X-Forwarded-For: 1.1.1.1, 203.0.113.7'], ['203.0.113.7', PROXY]],
    [
      'a claim on a line of its own',
      ['X-Forwarded-For: 1.1.1.1', 'X-Forwarded-For: 203.0.113.7'],
      ['203.0.113.7', PROXY],
    ],
    [
      'a claim to be a trusted proxy',
      ['X-Forwarded-For: 1.1.1.1, 192.0.2.1, 203.0.113.7'],
      ['203.0.113.7', PROXY],
    ],
    [
      'what stands before an unknown name',
      ['X-Forwarded-For: 203.0.113.7, unknown, 192.0.2.1'],
      ['192.0.2.1', PROXY],
    ],
    ['what is no address', ['X-Forwarded-For: 203.0.113.7, 1e9'], [PROXY]],
    ['an empty field', ['X-Forwarded-For:'], [PROXY]],
  ] as const)('%s is not believed', async (_, fields, chain) => {
    const got = await seen(PROXY, ...fields);
    expect(got.client).toBe(chain[0]);
    expect(got.fields['x-forwarded-for']).toBe(chain.join(', '));
  });

  it.each([
    ['a second trusted proxy', '203.0.113.7, 192.0.2.200', ['203.0.113.7', '192.0.2.200', PROXY]],
    ['IPv6', '2001:db8::7', ['2001:db8::7', PROXY]],
    ['IPv4 in IPv6', '::ffff:203.0.113.7', ['203.0.113.7', PROXY]],
  ])('%s is', async (_, claimed, chain) => {
    const got = await seen(PROXY, `X-Forwarded-For: ${claimed}`);
    expect(got.client).toBe(chain[0]);
    expect(got.fields['x-forwarded-for']).toBe(chain.join(', '));
  });

  it('a refused request has the client in its log line too', async () => {
    const lines = stack.log.length;
    const body = whole('POST /v1/index.php', ['X-Forwarded-For: 203.0.113.8', 'Connection: close'], '{}');
    expect(await raw(PROXY, body)).toMatch(/^HTTP\/1\.1 401 /);
    const line = await until(() => stack.log.slice(lines).find(({ msg }) => msg === 'request'));
    expect(line).toMatchObject({ client: '203.0.113.8', outcome: 'missing_credentials' });
  });
});
