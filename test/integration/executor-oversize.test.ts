import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import type { Readable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it, onTestFinished } from 'vitest';
import { Executor } from '../../src/backend/executor.ts';
import { upstreamOptions } from '../../src/backend/upstream-options.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { httpBackend } from '../support/backend.ts';
import { until } from '../support/until.ts';

const MAX_BYTES = 1024;
/** Larger than the executor holds in memory, and smaller than a stream's buffer, so that an unread stream does not stall. */
const BEGINNING = Buffer.alloc(2000, 'x');
const request = { method: 'GET', target: '/', headers: [], body: Buffer.alloc(0) };

/** An executor, and a backend that begins oversize responses. The test sends the rest of them. */
async function open(more: { maxConnections?: number; responseTimeoutMs?: number } = {}) {
  const responses: ServerResponse[] = [];
  const url = await httpBackend((_req, res) => {
    responses.push(res);
    res.writeHead(200).write(BEGINNING);
  });
  const executor = new Executor(upstreamOptions.parse({ url, ...more }), MAX_BYTES, systemClock);
  onTestFinished(() => executor.destroy());
  const stream = async (): Promise<Readable> => {
    const result = await executor.send(request);
    if (result.kind !== 'oversize') throw new Error(`not oversize: ${result.kind}`);
    return result.body;
  };
  return { responses, stream };
}

describe('an oversize response', () => {
  it('of a backend that stops sending is cut', async () => {
    const { responses, stream } = await open({ responseTimeoutMs: 1000 });
    const body = await stream();
    const cut = body.toArray();
    responses[0]?.write('more');
    await expect(cut).rejects.toThrow('the backend sent nothing for 1000 ms');
    await until(() => responses[0]?.destroyed);
  });

  it('may take longer than responseTimeoutMs while the backend sends more of it', async () => {
    const { responses, stream } = await open({ responseTimeoutMs: 1500 });
    const body = (await stream()).toArray();
    for (let piece = 0; piece < 10; piece++) {
      await sleep(200);
      responses[0]?.write('x');
    }
    responses[0]?.end();
    expect(Buffer.concat(await body)).toHaveLength(2010);
  });

  it('is not cut while it waits for its reader', async () => {
    const { responses, stream } = await open({ responseTimeoutMs: 1000 });
    const body = await stream();
    responses[0]?.end(Buffer.alloc(30_000_000, 'x'));
    await sleep(2000);
    expect(body.destroyed).toBe(false);
    expect(Buffer.concat(await body.toArray())).toHaveLength(30_002_000);
  });

  it('is cut if too many are open and all others are being read', async () => {
    const { responses, stream } = await open({ maxConnections: 4 });
    const reading = [await stream(), await stream()];
    const third = await stream();
    await expect(third.toArray()).rejects.toThrow('too many oversize responses at once');
    await until(() => responses[2]?.destroyed);
    for (const [at, body] of reading.entries()) {
      responses[at]?.end('end');
      expect(Buffer.concat(await body.toArray())).toHaveLength(2003);
    }
    const next = await stream();
    expect(next.destroyed).toBe(false);
    next.destroy();
    await once(next, 'close');
  });

  it('that has stalled longer than the others is cut when a new one begins', async () => {
    const { responses, stream } = await open({ maxConnections: 6 });
    const [first, second, third] = [await stream(), await stream(), await stream()];
    for (const at of [1, 0]) {
      responses[at]?.write(Buffer.alloc(1_000_000));
      const body = at === 1 ? second : first;
      await until(() => body.readableLength >= body.readableHighWaterMark);
    }
    const fourth = await stream();
    expect([first, second, third, fourth].map((body) => body.destroyed)).toEqual([false, true, false, false]);
  });
});
