import { createHash } from 'node:crypto';
import { once } from 'node:events';
import http, { type IncomingMessage, type ServerResponse } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { httpBackend } from '../../support/backend.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, chunk, head, LAST_CHUNK, Wire } from '../../support/wire.ts';

/** The backend's objects of the last request. */
let backend: { req: IncomingMessage; res: ServerResponse };
let arrived: Promise<void>;
let arrive: () => void;
const nextArrival = () => {
  arrived = new Promise((resolve) => {
    arrive = resolve;
  });
};

const MEGABYTE = Buffer.alloc(1_048_576, 'm');
const MEGABYTES = 50;
const authorised = { Authorization: 'Bearer sk_sandbox_alpha' };

let stack: Stack;
beforeAll(async () => {
  stack = await openStack();
});
afterAll(() => stack.close());

/** A gateway in front of a backend that only does what the test tells it to. */
async function openQuiet(): Promise<Stack> {
  nextArrival();
  const url = await httpBackend((req, res) => {
    backend = { req, res };
    arrive();
  });
  return await openStack({ upstream: { url } });
}

async function within<T>(use: (quiet: Stack) => Promise<T>): Promise<T> {
  const quiet = await openQuiet();
  try {
    return await use(quiet);
  } finally {
    backend?.req.socket.destroy();
    await quiet.close();
  }
}

const heard = async (stream: NodeJS.ReadableStream): Promise<string> =>
  String((await once(stream, 'data'))[0]);

describe('each chunk is passed on at once', () => {
  test('of an upload: the backend gets the first one before the second is sent', async () => {
    await within(async ({ port }) => {
      const wire = await Wire.open(port);
      wire.write(head('POST /v3/upload', ALPHA, 'Transfer-Encoding: chunked') + chunk('one'));
      await arrived;
      expect(await heard(backend.req)).toBe('one');
      wire.write(chunk('two'));
      expect(await heard(backend.req)).toBe('two');
      wire.write(LAST_CHUNK);
      await once(backend.req, 'end');
      backend.res.end('done');
      expect((await wire.answer()).body.toString()).toBe('done');
    });
  });

  test('of a response: the merchant gets the head before the body, and each chunk before the next', async () => {
    await within(async ({ port }) => {
      const wire = await Wire.open(port);
      wire.write(head('GET /v3/download', ALPHA));
      await arrived;
      backend.res.writeHead(200, { 'Content-Type': 'text/event-stream' }).flushHeaders();
      await wire.hears('\r\n\r\n');
      for (const piece of ['one', 'two', 'three']) {
        backend.res.write(piece);
        await wire.hears(chunk(piece));
      }
      backend.res.end();
      expect((await wire.answer()).body.toString()).toBe('onetwothree');
    });
  });

  test('of an upload and a response at the same time', async () => {
    await within(async ({ port }) => {
      const wire = await Wire.open(port);
      wire.write(head('POST /v3/duplex', ALPHA, 'Transfer-Encoding: chunked') + chunk('ping'));
      await arrived;
      backend.res.flushHeaders();
      backend.req.pipe(backend.res);
      await wire.hears(chunk('ping'));
      wire.write(chunk('pong'));
      await wire.hears(chunk('pong'));
      wire.write(LAST_CHUNK);
      expect((await wire.answer()).body.toString()).toBe('pingpong');
    });
  });

  test('of the sandbox’s stream', async () => {
    const wire = await Wire.open(stack.port);
    wire.write(head('GET /v3/stream?chunks=3&intervalMs=1500', ALPHA));
    await wire.hears('chunk 1');
    expect(wire.rest).not.toContain('chunk 2');
    await wire.hears('chunk 2');
    expect(wire.rest).not.toContain('chunk 3');
    expect((await wire.answer()).body.toString().match(/chunk \d/g)).toHaveLength(3);
  });
});

describe('there is backpressure in both directions', () => {
  test(`an upload of ${MEGABYTES} MB arrives complete`, async () => {
    const hash = createHash('sha256');
    const req = http.request(`${stack.url}/v3/echo`, { method: 'PUT', agent: false, headers: authorised });
    const answered = once(req, 'response');
    for (let i = 0; i < MEGABYTES; i++) {
      hash.update(MEGABYTE);
      if (!req.write(MEGABYTE)) await once(req, 'drain');
    }
    req.end();
    const [res] = (await answered) as [IncomingMessage];
    const echo = JSON.parse(Buffer.concat(await res.toArray()).toString());
    expect([echo.bodyBytes, echo.bodySha256]).toEqual([MEGABYTES * MEGABYTE.length, hash.digest('hex')]);
  });

  test('an upload stops while the backend does not read it', async () => {
    await within(async ({ url }) => {
      const req = http.request(`${url}/v3/upload`, { method: 'PUT', agent: false, headers: authorised });
      req.on('error', () => {});
      let sent = 0;
      const pump = async () => {
        for (let i = 0; i < MEGABYTES; i++) {
          if (!req.write(MEGABYTE)) await once(req, 'drain');
          sent++;
        }
        req.end();
      };
      const pumped = pump();
      await arrived;
      await stopped(() => sent);
      expect(sent).toBeLessThan(MEGABYTES);
      let got = 0;
      backend.req.on('data', (piece: Buffer) => {
        got += piece.length;
      });
      await Promise.all([pumped, once(backend.req, 'end')]);
      expect(got).toBe(MEGABYTES * MEGABYTE.length);
      req.destroy();
    });
  });

  test('a download stops while the merchant does not read it', async () => {
    await within(async ({ url }) => {
      const req = http.get(`${url}/v3/download`, { agent: false, headers: authorised });
      await arrived;
      let sent = 0;
      const pump = async () => {
        for (let i = 0; i < MEGABYTES; i++) {
          if (!backend.res.write(MEGABYTE)) await once(backend.res, 'drain');
          sent++;
        }
        backend.res.end();
      };
      const pumped = pump();
      const [res] = (await once(req, 'response')) as [IncomingMessage];
      await stopped(() => sent);
      expect(sent).toBeLessThan(MEGABYTES);
      let got = 0;
      for await (const piece of res) got += (piece as Buffer).length;
      await pumped;
      expect(got).toBe(MEGABYTES * MEGABYTE.length);
    });
  });
});

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

test('a merchant gets a refusal of the backend before its upload is complete', async () => {
  await within(async ({ port }) => {
    const wire = await Wire.open(port);
    wire.write(head('POST /v3/upload', ALPHA, 'Content-Length: 10000000') + 'x'.repeat(1000));
    await arrived;
    backend.res.writeHead(413, { 'Content-Length': 3, Connection: 'close' });
    backend.res.end('no.');
    const answer = await wire.answer();
    expect([answer.status, answer.body.toString()]).toEqual([413, 'no.']);
    wire.socket.destroy();
  });
});
