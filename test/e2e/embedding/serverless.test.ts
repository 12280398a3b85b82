import { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { PassThrough } from 'node:stream';
import express, { type Express } from 'express';
import { expect, it, onTestFinished } from 'vitest';
import { forward, type IdempotencyOptions, idempotency, sqliteStore } from '../../../src/index.ts';
import { httpBackend } from '../../support/backend.ts';
import { temporaryFolder } from '../../support/config.ts';

/** A request as the adapters of AWS Lambda make it: complete at once, and its body comes when it is read. */
class EventRequest extends IncomingMessage {
  constructor(key: string, body: string) {
    super(new PassThrough() as unknown as Socket);
    const headers = { 'content-type': 'application/json', 'content-length': `${body.length}` };
    Object.assign(this, { method: 'POST', url: '/payouts', httpVersion: '1.1', complete: true });
    this.headers = { host: 'api.example', 'idempotency-key': key, ...headers };
    this.rawHeaders = Object.entries(this.headers as Record<string, string>).flat();
    this._read = () => {
      this.push(body);
      this.push(null);
    };
  }
}

/** Its response, which is never closed. */
class EventResponse extends ServerResponse {
  constructor(req: IncomingMessage) {
    super(req);
    this.assignSocket(new PassThrough().resume() as unknown as Socket);
  }
}

/** An application that is called by events. `pay` resolves with the status of its answer. */
async function called(build: (app: Express) => void, limits: IdempotencyOptions['limits'] = {}) {
  const store = await sqliteStore({ path: temporaryFolder() });
  const protect = idempotency({ store, merchant: () => 'M-ALPHA', limits });
  const app = express().use(protect);
  build(app);
  onTestFinished(async () => {
    await protect.close(1000);
    await store.close();
  });
  const pay = async (key: string, body: string) => {
    const req = new EventRequest(key, body);
    const res = new EventResponse(req);
    const finished = new Promise((resolve) => res.once('finish', resolve));
    app(req, res);
    await finished;
    return res.statusCode;
  };
  return { pay, protect };
}

it('compares the body of a request that an adapter of AWS Lambda has made, and leaves it to the handler', async () => {
  const bodies: unknown[] = [];
  const { pay } = await called((app) =>
    app.use(express.json(), (req, res) => {
      bodies.push(req.body);
      res.status(201).end();
    }),
  );
  expect(await pay('k-1', '{"amount":1}')).toBe(201);
  expect(await pay('k-1', '{"amount":1}')).toBe(201);
  expect(await pay('k-1', '{"amount":2}')).toBe(422);
  expect(bodies).toEqual([{ amount: 1 }]);
});

it('forward() sends the body of such a request', async () => {
  const bodies: string[] = [];
  const upstream = await httpBackend(async (req, res) => {
    bodies.push(Buffer.concat(await req.toArray()).toString());
    res.writeHead(201, { 'Content-Length': 0 }).end();
  });
  const toBackend = forward({ upstream });
  onTestFinished(() => toBackend.close());
  const { pay } = await called((app) => app.use(toBackend));
  expect(await pay('k-1', '{"amount":1}')).toBe(201);
  expect(bodies).toEqual(['{"amount":1}']);
});

it('counts such a request as ended when its response is, although it is never closed', async () => {
  const { pay, protect } = await called((app) => app.use((_req, res) => res.status(201).end()), {
    inFlight: 1,
  });
  for (const key of ['k-1', 'k-2', 'k-3']) expect(await pay(key, '{"amount":1}')).toBe(201);
  expect(await protect.metrics.text()).toContain('oncegate_in_flight 0\n');
});
