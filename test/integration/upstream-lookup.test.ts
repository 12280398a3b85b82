import type { IncomingMessage, RequestListener } from 'node:http';
import { describe, expect, it, onTestFinished } from 'vitest';
import { Executor } from '../../src/backend/executor.ts';
import { type LookupRequest, lookUp } from '../../src/backend/lookup.ts';
import { upstreamOptions } from '../../src/backend/upstream-options.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { httpBackend, NOT_LISTENING } from '../support/backend.ts';

const MAX_BYTES = 64;
const transaction = { merchant: 'M & Co', operation: 'withdraw', key: 'a/b?c=d&e %2e' };

function executorTo(url: string): Executor {
  const executor = new Executor(upstreamOptions.parse({ url }), MAX_BYTES, systemClock);
  onTestFinished(() => executor.destroy());
  return executor;
}

const options: LookupRequest = {
  path: '/tx?merchant={merchant}&key={key}&what={operation}',
  headers: { authorization: 'Bearer of-the-gateway' },
  completed: [200],
  released: [404, 410],
  completedStatus: 201,
  timeoutMs: 1000,
};

async function asked(onRequest: RequestListener, more: Partial<LookupRequest> = {}, key = transaction.key) {
  const requests: IncomingMessage[] = [];
  const url = await httpBackend((req, res) => {
    requests.push(req);
    onRequest(req, res);
  });
  const answer = await lookUp(executorTo(url), { ...options, ...more }, { ...transaction, key });
  return { answer, requests };
}

describe('a lookup', () => {
  it('is one GET with the configured credential and percent-encoded values', async () => {
    const { requests } = await asked((_, res) => res.end());
    const [request] = requests;
    expect(requests).toHaveLength(1);
    expect(request?.method).toBe('GET');
    expect(request?.url).toBe('/tx?merchant=M%20%26%20Co&key=a%2Fb%3Fc%3Dd%26e%20%252e&what=withdraw');
    expect(request?.headers).toMatchObject({
      authorization: 'Bearer of-the-gateway',
      'x-merchant-code': 'M & Co',
      'accept-encoding': 'identity',
      'cache-control': 'no-cache, no-store',
    });
  });

  it('answered with a completed status yields the configured status, the body, and the headers to read the body', async () => {
    const { answer } = await asked((_, res) => {
      res.setHeader('Content-Type', 'application/json').setHeader('Set-Cookie', 'a=b');
      res.end('{"paid":true}');
    });
    expect(answer).toEqual({
      kind: 'executed',
      said: 'GET answered 200',
      completion: {
        kind: 'response',
        response: {
          status: 201,
          headers: ['Content-Type', 'application/json'],
          body: Buffer.from('{"paid":true}'),
        },
      },
    });
  });

  it('answered with a response too large to store yields a tombstone', async () => {
    const { answer } = await asked((_, res) => res.end('x'.repeat(MAX_BYTES + 1)));
    expect(answer).toMatchObject({ kind: 'executed', completion: { kind: 'tombstone', status: 201 } });
  });

  it.each([
    [404, 'not_executed', {}],
    [410, 'not_executed', {}],
    // A 404 may only mean that the path is mistyped.
    [404, 'undecided', { released: [] }],
    [202, 'undecided', {}],
    [302, 'undecided', {}],
    [401, 'undecided', {}],
    [500, 'undecided', {}],
  ])('answered with %i is %s, with %j', async (status, kind, more) => {
    const { answer } = await asked((_, res) => res.writeHead(status).end('body'), more);
    expect(answer).toEqual({ kind, said: `GET answered ${status}` });
  });

  it('answered by another gateway that did not send it is undecided, whatever the status', async () => {
    const { answer } = await asked((_, res) => {
      res.writeHead(404, { 'Content-Type': 'application/problem+json' });
      res.end('{"type":"urn:oncegate:problem:not_declared"}');
    });
    expect(answer).toEqual({ kind: 'undecided', said: 'GET answered 404' });
  });

  it.each([
    [404, '1', 'undecided'],
    [200, '86400', 'undecided'],
    // Some caches send it with what they have just got from the backend.
    [404, '0', 'not_executed'],
  ])('answered with %i and Age: %s is %s', async (status, age, kind) => {
    const { answer } = await asked((_, res) => res.writeHead(status, { Age: age }).end('body'));
    expect(answer.kind).toBe(kind);
  });

  it.each<[string, RequestListener]>([
    ['is not answered in time', () => {}],
    ['is reset', (req) => req.socket.destroy()],
    ['is reset in its body', (req, res) => res.write('half', () => req.socket.destroy())],
  ])('that %s has failed, and is not repeated', async (_, onRequest) => {
    const { answer, requests } = await asked(onRequest);
    expect(answer).toMatchObject({ kind: 'failed', said: expect.stringMatching(/^GET failed: /) });
    expect(requests).toHaveLength(1);
  });

  it('fails if nothing listens on the port', async () => {
    const answer = await lookUp(executorTo(NOT_LISTENING), options, transaction);
    expect(answer).toMatchObject({ kind: 'failed', said: expect.stringContaining('ECONNREFUSED') });
  });

  it.each(['..', '.', 'a/../b', 'a\\b', '%2e%2e', 'a;b', 'a.b', 'a.json', 'a.', 'a?b', 'a#b'])(
    'is not sent if the key %j could change its path',
    async (key) => {
      const { answer, requests } = await asked((_, res) => res.end(), { path: '/tx/{key}' }, key);
      expect(answer).toEqual({ kind: 'failed', said: 'the key cannot be part of a path' });
      expect(requests).toEqual([]);
    },
  );

  it.each([
    ['order:1', '/tx/order%3A1'],
    ['a b+c', '/tx/a%20b%2Bc'],
  ])('with the key %j in its path requests %s', async (key, target) => {
    const { requests } = await asked((_, res) => res.end(), { path: '/tx/{key}' }, key);
    expect(requests[0]?.url).toBe(target);
  });
});
