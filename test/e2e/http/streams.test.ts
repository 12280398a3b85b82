/** Responses and uploads that are passed through. */
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import http, { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { backendForFile } from '../../support/backend.ts';
import { BEARER } from '../../support/client.ts';
import { temporaryFolder, writeKeys } from '../../support/config.ts';
import { metric } from '../../support/metrics.ts';
import { payoutBody } from '../../support/payout.ts';
import { nothingOpen, type Stack, stackForFile } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { acceptUpgrade } from '../../support/web-sockets.ts';
import { ALPHA, ask, chunk, codeOf, HANDSHAKE, head, LAST_CHUNK, request, Wire } from '../../support/wire.ts';

const MEGABYTE = Buffer.alloc(1_048_576, 'm');
/** Many more than all buffers between merchant and backend hold. */
const MEGABYTES = 30;
const CHUNKED = 'Transfer-Encoding: chunked';

/** What the backend has got since the test began. It only does what the test tells it to. */
const held: { req: IncomingMessage; res: ServerResponse }[] = [];
const upgraded: Duplex[] = [];
const server = createServer((req, res) => void held.push({ req: req.on('error', () => {}), res }));
server.on('upgrade', (_req, socket) => {
  upgraded.push(socket);
  acceptUpgrade(socket);
  socket.resume();
});
const upstream = { url: await backendForFile(server), responseTimeoutMs: 60_000 };
const publicPaths = [{ method: ['GET', 'POST'], path: '/public' }];
const auth = { keys: { source: 'file' as const, path: writeKeys(temporaryFolder()) }, public: publicPaths };
const [stack, forTwo, open, impatient, tight] = await Promise.all([
  stackForFile({ upstream }),
  stackForFile({ upstream: { ...upstream, maxStreams: 2 } }),
  // Public requests may hold two of its streams.
  stackForFile({ auth, upstream: { ...upstream, maxStreams: 8 } }),
  // Waits for no public body.
  stackForFile({ auth, upstream, limits: { bodyTimeoutMs: 300 } }),
  // Public bodies may hold 16 KiB of its memory.
  stackForFile({ auth, upstream, limits: { bodyBytes: 10_000, bufferedBytes: 65_536 } }),
]);
beforeEach(() => {
  held.length = 0;
  upgraded.length = 0;
});

const arrived = () => until(() => held[0]);
const heard = async (stream: NodeJS.ReadableStream): Promise<string> =>
  String((await once(stream, 'data'))[0]);
/** Resolves when the count has stopped growing: all buffers between merchant and backend are full. */
async function stopped(count: () => number): Promise<void> {
  let before = -1;
  await until(async () => {
    const same = count() === before;
    before = count();
    await sleep(150);
    return same && count() === before;
  });
}

/** Writes megabytes with regard to backpressure, and counts them. */
function pump(to: ServerResponse | http.ClientRequest) {
  const hash = createHash('sha256');
  const sent = { count: 0, hash };
  const all = async () => {
    for (; sent.count < MEGABYTES; sent.count++) {
      hash.update(MEGABYTE);
      if (!to.write(MEGABYTE)) await once(to, 'drain');
    }
    to.end();
  };
  return { sent, done: all() };
}

describe('each chunk is passed on at once', () => {
  test('of a response: the merchant gets the head before the body, and each chunk before the next', async () => {
    const wire = await Wire.open(stack.port);
    wire.write(head('GET /v3/download', ALPHA));
    const { res } = await arrived();
    res.writeHead(200, { 'Content-Type': 'text/event-stream' }).flushHeaders();
    await wire.hears('\r\n\r\n');
    for (const piece of ['one', 'two', 'three']) {
      res.write(piece);
      await wire.hears(chunk(piece));
    }
    res.end();
    expect((await wire.answer()).body.toString()).toBe('onetwothree');
  });

  test('of an upload and a response at the same time', async () => {
    const wire = await Wire.open(stack.port);
    wire.write(head('POST /v3/duplex', ALPHA, CHUNKED) + chunk('ping'));
    const { req, res } = await arrived();
    res.flushHeaders();
    req.pipe(res);
    await wire.hears(chunk('ping'));
    wire.write(chunk('pong'));
    await wire.hears(chunk('pong'));
    wire.write(LAST_CHUNK);
    expect((await wire.answer()).body.toString()).toBe('pingpong');
  });

  test('of a refusal: the merchant gets it before its upload is complete', async () => {
    const wire = await Wire.open(stack.port);
    wire.write(head('POST /v3/upload', ALPHA, 'Content-Length: 10000000') + 'x'.repeat(1000));
    const { res } = await arrived();
    res.writeHead(413, { 'Content-Length': 3, Connection: 'close' }).end('no.');
    const answer = await wire.answer();
    expect([answer.status, answer.body.toString()]).toEqual([413, 'no.']);
  });
});

describe('there is backpressure', () => {
  test('an upload stops while the backend does not read it, and arrives complete', async () => {
    const upload = http.request(`${stack.url}/v3/upload`, {
      method: 'PUT',
      agent: false,
      headers: BEARER,
    });
    const { sent, done } = pump(upload.on('error', () => {}));
    const { req, res } = await arrived();
    await stopped(() => sent.count);
    expect(sent.count).toBeLessThan(MEGABYTES);
    const hash = createHash('sha256');
    for await (const piece of req) hash.update(piece as Buffer);
    await done;
    expect(hash.digest('hex')).toBe(sent.hash.digest('hex'));
    res.end();
    await once(upload, 'response');
  });

  test('a download stops while the merchant does not read it, and arrives complete', async () => {
    const download = http.get(`${stack.url}/v3/download`, { agent: false, headers: BEARER });
    const { sent, done } = pump((await arrived()).res);
    const [answer] = (await once(download, 'response')) as [IncomingMessage];
    await stopped(() => sent.count);
    expect(sent.count).toBeLessThan(MEGABYTES);
    const hash = createHash('sha256');
    for await (const piece of answer) hash.update(piece as Buffer);
    await done;
    expect(hash.digest('hex')).toBe(sent.hash.digest('hex'));
  });
});

describe('a merchant who leaves', () => {
  /** The request at the backend, after its merchant has left and both connections are closed. */
  async function leaving(bytes: string, upTo: (at: (typeof held)[number], wire: Wire) => Promise<unknown>) {
    const wire = await Wire.open(stack.port);
    wire.write(bytes);
    const at = await arrived();
    const closed = once(at.res, 'close');
    await upTo(at, wire);
    wire.socket.destroy();
    await closed;
    await nothingOpen(stack);
    return at;
  }

  test('before or within the answer aborts the request to the backend', async () => {
    const before = await leaving(head('GET /v3/slow', ALPHA), async () => {});
    expect(before.res.writableFinished).toBe(false);
    held.length = 0;
    const within = await leaving(head('GET /v3/slow', ALPHA), async ({ res }, wire) => {
      res.write('half');
      await wire.hears(chunk('half'));
    });
    expect(within.res.writableFinished).toBe(false);
  });

  test.each([
    ['of known length', `${head('POST /v3/upload', ALPHA, 'Content-Length: 100')}half`],
    ['in chunks', head('POST /v3/upload', ALPHA, CHUNKED) + chunk('half')],
  ])('within an upload %s: the backend does not accept the part as a whole body', async (_how, bytes) => {
    const { req } = await leaving(bytes, async (at) => expect(await heard(at.req)).toBe('half'));
    expect(req.complete).toBe(false);
  });
});

describe('with maxStreams: 2, a third stream is refused and not sent', () => {
  const ask = async (...fields: string[]) =>
    (await Wire.open(forTwo.port)).write(head('GET /v3/stream', ALPHA, ...fields));
  const sent = () => held.length + upgraded.length;
  const expectRefused = async () => {
    const before = sent();
    for (const fields of [[], HANDSHAKE]) {
      const answer = await (await ask(...fields)).answer();
      const { status, headers } = answer;
      expect([status, codeOf(answer), headers['retry-after']]).toEqual([503, 'overloaded', ['1']]);
    }
    expect(sent()).toBe(before);
  };
  /** Repeats the handshake until it is accepted. */
  const opened = () =>
    until(async () => {
      const wire = await ask(...HANDSHAKE);
      return (await wire.answer()).status === 101 ? wire : undefined;
    });
  /** Frees both places. */
  const empty = async (wires: Wire[]) => {
    for (const { socket } of wires) socket.destroy();
    await nothingOpen(forTwo);
  };

  test('until one of two requests is answered', async () => {
    const [first, second] = [await ask(), await ask()];
    await until(() => sent() === 2);
    await expectRefused();
    held[0]?.res.end('done');
    await Promise.race([first.hears('done'), second.hears('done')]);
    const third = await ask();
    await until(() => sent() === 3);
    await expectRefused();
    await empty([first, second, third]);
  });

  test('until one of two WebSockets is closed, by the backend or the merchant', async () => {
    const [first, second] = [await ask(...HANDSHAKE), await ask(...HANDSHAKE)];
    expect([(await first.answer()).status, (await second.answer()).status]).toEqual([101, 101]);
    await expectRefused();
    upgraded[0]?.end();
    await Promise.race([first.ended, second.ended]);
    const third = await opened();
    await expectRefused();
    first.socket.destroy();
    second.socket.destroy();
    const fourth = await opened();
    expect(sent()).toBe(4);
    await empty([third, fourth]);
  });

  test('until a merchant disconnects, also one with two pipelined requests', async () => {
    const wire = (await ask()).write(head('GET /v3/stream', ALPHA));
    await until(() => sent() === 2);
    held[1]?.res.end('done, and queued behind the first one');
    await expectRefused();
    wire.socket.destroy();
    const both = [await opened(), await opened()];
    await expectRefused();
    await empty(both);
  });
});

describe('public requests', () => {
  const upload = async (type: string, { port }: Stack) =>
    (await Wire.open(port)).write(
      `${head('POST /public', `Content-Type: ${type}`, 'Content-Length: 9')}half`,
    );

  test('hold a quarter of the streams at most, uploads that are read included', async () => {
    const wires = [await upload('image/png', open), await upload('application/json', open)];
    await arrived();
    await until(async () => (await open.gateway.metrics.text()).includes('oncegate_in_flight 2'));
    for (const line of ['POST /public', 'GET /public']) {
      const answer = await ask(open.port, head(line));
      expect([answer.status, codeOf(answer), answer.headers['retry-after']]).toEqual([
        503,
        'overloaded',
        ['1'],
      ]);
    }
    const merchant = (await Wire.open(open.port)).write(head('GET /v3/stream', ALPHA));
    await until(() => held[1]);
    held[1]?.res.end('done');
    expect((await merchant.answer()).status).toBe(200);
    for (const { socket } of wires) socket.destroy();
    await nothingOpen(open);
    const next = (await Wire.open(open.port)).write(head('GET /public'));
    await until(() => held[2]);
    next.socket.destroy();
  });

  test('hold a quarter of limits.bufferedBytes at most, which leaves memory for the bodies of merchants', async () => {
    const hold = async ({ port }: Stack) =>
      (await Wire.open(port)).write(
        head('POST /public', 'Content-Type: text/plain', 'Content-Length: 10000') + 'x'.repeat(9000),
      );
    const first = await hold(tight);
    await until(async () => (await tight.gateway.metrics.text()).includes('oncegate_buffered_bytes 9000'));
    const refused = await (await hold(tight)).answer();
    expect([refused.status, codeOf(refused)]).toEqual([503, 'overloaded']);
    const body = JSON.stringify({ ...payoutBody(), padding: 'x'.repeat(9000) });
    const merchant = (await Wire.open(tight.port)).write(request('POST /v1/index.php', [ALPHA], body));
    await arrived();
    held[0]?.res.end('paid');
    expect((await merchant.answer()).status).toBe(200);
    first.socket.destroy();
    await until(async () => (await tight.gateway.metrics.text()).includes('oncegate_buffered_bytes 0'));
    (await hold(tight)).write('x'.repeat(1000));
    await until(() => held[1]);
  });

  test.each(['image/png', 'application/json'])('have a time limit for a body of %s', async (type) => {
    const answer = await (await upload(type, impatient)).answer();
    expect([answer.status, codeOf(answer)]).toEqual([408, 'request_timeout']);
    await nothingOpen(impatient);
    await until(() => held.every(({ req }) => req.destroyed));
    for (const { req } of held) expect(req.complete).toBe(false);
    expect(held).toHaveLength(type === 'image/png' ? 1 : 0);
  });
});

/** What the backend of {@link hasty} is sending, and its connections. */
const flood = { streams: 0, connections: 0 };
const PIECE = Buffer.alloc(65_536, 'x');
/** `X-Sandbox-Fault: endless` asks for a body without end. Any other one begins, and nothing follows. */
const flooding = createServer((req, res) => {
  req.resume();
  res.write('x');
  if (req.headers['x-sandbox-fault'] !== 'endless') return;
  flood.streams++;
  res.once('close', () => flood.streams--);
  const pump = () => {
    while (!res.destroyed && res.write(PIECE));
  };
  res.on('drain', pump);
  pump();
});
flooding.on('connection', (socket) => {
  flood.connections++;
  socket.once('close', () => flood.connections--);
});
const ANSWER_TIMEOUT_MS = 500;
const hasty = await stackForFile({
  upstream: { url: await backendForFile(flooding), maxConnections: 2 },
  idempotency: { maxStoredBytes: 65_536 },
  limits: { answerTimeoutMs: ANSWER_TIMEOUT_MS },
});

describe('a merchant of an endless response', () => {
  const PAYOUT = { method: 'POST', path: '/v1/index.php' };
  const KEY = { 'x-service-idempotency': 'endless-1' };

  /** The head of the response has arrived, and its body is not read. */
  async function download(more: http.RequestOptions): Promise<IncomingMessage> {
    const headers = { ...BEARER, 'X-Sandbox-Fault': 'endless', ...more.headers };
    const asking = http.request(hasty.url, { agent: false, ...more, headers });
    asking.end(more.method && JSON.stringify(payoutBody()));
    onTestFinished(() => void asking.destroy());
    const [response] = (await once(asking, 'response')) as [IncomingMessage];
    return response.on('error', () => {});
  }

  test.each<[string, http.RequestOptions]>([
    ['is passed through', { path: '/v3/endless' }],
    ['is too large to be stored', { ...PAYOUT, headers: KEY }],
    ['has no key', PAYOUT],
  ])(
    'that %s, who does not read it, loses the connection, and the one to the backend is closed',
    async (_, more) => {
      const response = await download(more);
      await until(() => flood.streams === 0 && flood.connections === 0);
      await expect(response.toArray()).rejects.toThrow('aborted');
      expect(await metric(hasty.adminUrl, 'oncegate_upstream_slots_in_use')).toBe(0);
    },
  );

  test('who has pipelined it behind another one loses the connection as well', async () => {
    const endless = [ALPHA, 'X-Sandbox-Fault: endless'];
    const wire = await Wire.open(hasty.port);
    wire.write(head('GET /v3/endless', ...endless));
    wire.write(request('POST /v1/index.php', endless, '{"action":"withdraw"}'));
    await until(() => flood.streams === 2);
    await wire.ended;
    await until(() => flood.streams === 0);
  });

  test('who reads it slowly, or waits for the next chunk, keeps the connection', async () => {
    const waiting = await download({ path: '/v3/begin', headers: { 'X-Sandbox-Fault': 'begin' } });
    const response = await download({ path: '/v3/endless' });
    let bytes = 0;
    response.on('data', (piece: Buffer) => {
      bytes += piece.length;
      if (bytes % 3_000_000 >= piece.length) return;
      response.pause();
      setTimeout(() => response.resume(), 100);
    });
    await Promise.race([once(response, 'close'), once(waiting, 'close'), sleep(3 * ANSWER_TIMEOUT_MS)]);
    expect([flood.streams, waiting.destroyed]).toEqual([1, false]);
    response.destroy();
    await until(() => flood.streams === 0);
  });
});
