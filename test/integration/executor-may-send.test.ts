import type { ServerResponse } from 'node:http';
import { describe, expect, it, onTestFinished } from 'vitest';
import { Executor } from '../../src/backend/executor.ts';
import { upstreamOptions } from '../../src/backend/upstream-options.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { httpBackend } from '../support/backend.ts';
import { until } from '../support/until.ts';

const request = (target: string) => ({
  method: 'POST',
  target,
  headers: ['Content-Type', 'text/plain'],
  body: Buffer.from(target),
});

/** An executor with one connection, and a backend that answers when the test calls `answer`. */
async function open() {
  const arrived: string[] = [];
  const held: ServerResponse[] = [];
  const url = await httpBackend((req, res) => {
    arrived.push(req.url ?? '');
    req.resume();
    held.push(res);
  });
  const options = upstreamOptions.parse({ url, maxConnections: 1, responseTimeoutMs: 20_000 });
  const executor = new Executor(options, 1024, systemClock);
  onTestFinished(() => executor.destroy());
  const answer = () => held.shift()?.end('done');
  return { executor, arrived, answer };
}

const TOO_LATE = 'the lease had lapsed before the request could be sent';

describe('a request that queues for a connection', () => {
  it('is not sent if its fence has closed before a connection is free', async () => {
    const { executor, arrived, answer } = await open();
    let may = true;
    const first = executor.send(request('/first'));
    await until(() => arrived.length === 1);
    const ended: string[] = [];
    const queued = executor.send(request('/queued'), {
      maySend: () => may,
      ended: ({ kind }) => ended.push(kind),
    });
    may = false;
    answer();
    expect(await first).toMatchObject({ kind: 'complete' });
    expect(await queued).toMatchObject({ kind: 'not_sent', reason: TOO_LATE });
    // The connection still serves other requests, and no byte of the refused one was sent on it.
    const next = executor.send(request('/next'));
    await until(() => arrived.length === 2);
    answer();
    expect(await next).toMatchObject({ kind: 'complete' });
    expect(arrived).toEqual(['/first', '/next']);
    expect(ended).toEqual(['not_sent']);
  });

  it('whose deadline passes before it has a connection is never sent', async () => {
    const { executor, arrived, answer } = await open();
    const first = executor.send(request('/first'));
    await until(() => arrived.length === 1);
    const late = await executor.send(request('/late'), { timeoutMs: 50 });
    expect(late).toMatchObject({ kind: 'not_sent', reason: 'no connection within 50 ms' });
    answer();
    await first;
    const next = executor.send(request('/next'));
    await until(() => arrived.length === 2);
    expect(arrived).toEqual(['/first', '/next']);
    answer();
    expect(await next).toMatchObject({ kind: 'complete' });
  });

  it('opens no connection if its fence is closed', async () => {
    const { executor, arrived } = await open();
    const refused = await executor.send(request('/refused'), { maySend: () => false });
    expect(refused).toMatchObject({ kind: 'not_sent', reason: TOO_LATE });
    expect(arrived).toEqual([]);
  });
});
