/** The fields that the backend gets. */
import { createServer, type OutgoingHttpHeaders } from 'node:http';
import { buffer } from 'node:stream/consumers';
import { describe, expect, it } from 'vitest';
import { backendForFile } from '../../support/backend.ts';
import { BEARER, send } from '../../support/client.ts';
import { eachRowInTurn } from '../../support/each-row.ts';
import { stackForFile } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, ask, BRAVO, request } from '../../support/wire.ts';

/** All of 127.0.0.0/8 is this machine, so a test can be the client, a proxy, or somebody else. */
const PROXY = '127.0.0.2';
const STRANGER = '127.0.0.9';

interface Received extends Record<string, unknown> {
  rawHeaders: string[];
  /** The fields by their names in lower case, with one value for each line. */
  fields: Record<string, string[]>;
  body: string;
}

const url = await backendForFile(
  createServer(async (req, res) => {
    const body = (await buffer(req)).toString('latin1');
    res.end(JSON.stringify({ rawHeaders: req.rawHeaders, fields: req.headersDistinct, body }));
  }),
);
const upstream = { url };
const listen = { host: '127.0.0.1', port: 0, trustedProxies: [PROXY, '192.0.2.0/24'] };
const [stack, behind] = await Promise.all([stackForFile({ upstream }), stackForFile({ upstream, listen })]);

let keys = 0;
describe.each([
  ['passed through', 'POST /v3/echo', () => []],
  ['executed under a key', 'POST /v1/index.php', () => [`X-sErViCe-Idempotency: order-${keys++}`]],
])('a request that is %s', (_way, line, keyed) => {
  async function received(fields: string[], body = '{"action":"withdraw"}'): Promise<Received> {
    const answer = await ask(stack.port, request(line, [...keyed(), ...fields], body));
    expect(answer.status).toBe(200);
    return answer.json<Received>();
  }

  it('has the merchant code of its secret key, and no other', async () => {
    expect((await received([BRAVO])).fields['x-merchant-code']).toEqual(['M-BRAVO']);
    const claims = [
      ['X-Merchant-Code: M-BRAVO'],
      ['x-merchant-code: M-BRAVO', 'X-MERCHANT-CODE: M-CHARLIE'],
      ['X_Merchant_Code: M-BRAVO', 'x-merchant_code: M-BRAVO'],
      ['X-Merchant-Code: M-BRAVO', 'Connection: x-merchant-code'],
      ['Connection: X-Merchant-Code, Authorization, x-request-id, x-forwarded-for'],
    ];
    await eachRowInTurn(claims, async (fields) => {
      const got = (await received([ALPHA, ...fields])).fields;
      expect(got['x-merchant-code']).toEqual(['M-ALPHA']);
      expect(got.authorization).toEqual(['Bearer sk_sandbox_alpha']);
      expect(JSON.stringify(got)).not.toMatch(/M-(?:BRAVO|CHARLIE)/);
    });
  });

  it('has no fields of the connection, nor those that Connection names, except the necessary ones', async () => {
    const { fields: got } = await received([
      ...[ALPHA, 'Connection: X-Hop, idempotency-key, content-type', 'X-Hop: 1', 'Keep-Alive: timeout=5'],
      ...['Proxy-Connection: keep-alive', 'Proxy-Authorization: Basic eDp5', 'TE: trailers'],
      ...[
        'Trailer: X-Sum',
        'HTTP2-Settings: AAMAAABkAAQAAP__',
        'X-Kept: 1',
        'Content-Type: application/json',
      ],
    ]);
    const ofTheConnection = ['x-hop', 'keep-alive', 'proxy-connection', 'proxy-authorization', 'te'];
    for (const name of [...ofTheConnection, 'trailer', 'http2-settings'])
      expect(got, name).not.toHaveProperty(name);
    expect(got).toMatchObject({
      ...{ connection: ['keep-alive'], 'x-kept': ['1'], 'content-type': ['application/json'] },
    });
  });

  it('has no orders to an Envoy between the gateway and the backend, such as to send it twice', async () => {
    const orders = [
      'X-Envoy-Retry-On: 5xx,reset',
      'x-envoy-retry-grpc-on: unavailable',
      'X-ENVOY-MAX-RETRIES: 3',
    ];
    const limits = ['x-envoy-hedge-on-per-try-timeout: true', 'x-envoy-upstream-rq-per-try-timeout-ms: 1'];
    const answers = ['x-envoy-upstream-rq-timeout-alt-response: 1', 'Connection: x-envoy-retry-on'];
    const { fields: got } = await received([ALPHA, ...orders, ...limits, ...answers]);
    expect(Object.keys(got).filter((name) => name.startsWith('x-envoy'))).toEqual([]);
  });

  it('has no orders to a Linkerd there either', async () => {
    const orders = [
      'L5d-Retry-Http: 5xx',
      'l5d-retry-limit: 3',
      'l5d-timeout: 1ms',
      'l5d-dst-override: other.svc:80',
    ];
    const { fields: got } = await received([ALPHA, ...orders]);
    expect(Object.keys(got).filter((name) => name.startsWith('l5d'))).toEqual([]);
  });

  it('has the merchant’s address, X-Forwarded fields and the request id', async () => {
    const claims = ['X-Forwarded-For: 198.51.100.1', 'X-Forwarded-Proto: https', 'X-Request-Id: order-4711'];
    // No proxy is trusted, so what the merchant says about its address is not believed.
    expect((await received([ALPHA, ...claims])).fields).toMatchObject({
      'x-forwarded-for': ['127.0.0.1'],
      'x-forwarded-proto': ['http'],
      'x-forwarded-host': ['gateway.test'],
      'x-request-id': ['order-4711'],
      host: [url.replace('http://', '')],
    });
  });

  it('has its body byte for byte', async () => {
    const body = `{ "action" : "withdraw",\r\n\t"amount":1e1 , "note":"\\u00e9 ${'x'.repeat(70_000)}" }`;
    const got = await received([ALPHA], body);
    expect(got.body).toBe(body);
    expect(got.fields['content-length']).toEqual([`${body.length}`]);
    expect(got.fields).not.toHaveProperty('transfer-encoding');
  });
});

it('a payout is requested without a content coding, and with its key as it was sent', async () => {
  const codings = ['Accept-Encoding: gzip, br', 'accept-encoding: zstd'];
  const sent = ['X-Service-Idempotency: sent-7', 'IDEMPOTENCY-KEY: "sent-7"'];
  const bytes = request('POST /v1/index.php', [ALPHA, ...codings, ...sent], '{"action":"withdraw"}');
  const answer = await ask(stack.port, bytes);
  const { rawHeaders, fields } = answer.json<Received>();
  expect(fields['accept-encoding']).toEqual(['identity']);
  for (const line of sent) expect(rawHeaders.join(': ')).toContain(line);
});

describe('behind trusted proxies', () => {
  /** `client` in the log line of a request from this address, and the fields that the backend got. */
  async function seen(from: string, claims: OutgoingHttpHeaders) {
    const lines = behind.log.length;
    const headers = { Host: 'gateway.test', ...BEARER, ...claims };
    const answer = await send(behind.url, { path: '/v3/echo', localAddress: from, headers });
    const { client } = await until(() => behind.log.slice(lines).find(({ msg }) => msg === 'request'));
    return { client, fields: answer.json<Received>().fields };
  }

  const CLAIMS = {
    ...{ 'X-Forwarded-For': '203.0.113.7', 'X-Forwarded-Proto': 'https', 'X-Forwarded-Host': 'pay.test' },
    ...{ 'X-Forwarded-Port': '443', 'X-Real-IP': '203.0.113.66', Forwarded: 'for=203.0.113.7' },
  };

  it('somebody else is not believed', async () => {
    const { client, fields } = await seen(STRANGER, CLAIMS);
    expect(client).toBe(STRANGER);
    expect(fields).toMatchObject({
      'x-forwarded-for': [STRANGER],
      'x-forwarded-proto': ['http'],
      'x-forwarded-host': ['gateway.test'],
      'x-real-ip': [STRANGER],
    });
    for (const name of ['x-forwarded-port', 'forwarded']) expect(fields).not.toHaveProperty(name);
  });

  it('a proxy is believed about the client, and about how the client called it', async () => {
    const { client, fields } = await seen(PROXY, CLAIMS);
    expect(client).toBe('203.0.113.7');
    expect(fields).toMatchObject({
      'x-forwarded-for': [`203.0.113.7, ${PROXY}`],
      'x-forwarded-proto': ['https'],
      'x-forwarded-host': ['pay.test'],
      'x-forwarded-port': ['443'],
      // Some proxies pass this field on from their client.
      'x-real-ip': ['203.0.113.7'],
    });
    expect(fields).not.toHaveProperty('forwarded');
  });

  it('only the chain of trusted addresses is believed, not the client’s own claim', async () => {
    const chains: [what: string, fields: string[], chain: string[]][] = [
      ['the client’s own claim', ['1.1.1.1, 203.0.113.7'], ['203.0.113.7', PROXY]],
      ['a claim on a line of its own', ['1.1.1.1', '203.0.113.7'], ['203.0.113.7', PROXY]],
      ['a claim to be a trusted proxy', ['1.1.1.1, 192.0.2.1, 203.0.113.7'], ['203.0.113.7', PROXY]],
      ['what stands before an unknown name', ['203.0.113.7, unknown, 192.0.2.1'], ['192.0.2.1', PROXY]],
      ['what is no address', ['203.0.113.7, 1e9'], [PROXY]],
      ['an empty field', [''], [PROXY]],
      ['a second trusted proxy', ['203.0.113.7, 192.0.2.200'], ['203.0.113.7', '192.0.2.200', PROXY]],
      ['IPv6', ['2001:db8::7'], ['2001:db8::7', PROXY]],
      ['IPv4 in IPv6', ['::ffff:203.0.113.7'], ['203.0.113.7', PROXY]],
    ];
    await eachRowInTurn(chains, async ([, values, chain]) => {
      const got = await seen(PROXY, { 'X-Forwarded-For': values });
      expect(got.client).toBe(chain[0]);
      expect(got.fields['x-forwarded-for']).toEqual([chain.join(', ')]);
    });
  });
});
