import { createServer, type Server } from 'node:http';
import { createRequire } from 'node:module';
import express5, { type Express, type RequestHandler } from 'express';
import { onTestFinished } from 'vitest';
import {
  type IdempotencyMiddleware,
  type IdempotencyOptions,
  idempotency,
  sqliteStore,
} from '../../../src/index.ts';
import { openBackend } from '../../support/backend.ts';
import { send, type TestAnswer, type TestRequest } from '../../support/client.ts';
import { temporaryFolder } from '../../support/config.ts';

const require = createRequire(import.meta.url);

/** The versions of Express that the middleware is for. */
export const expressVersions: [name: string, express: typeof express5][] = [
  ['Express 5', express5],
  ['Express 4', require('express4') as typeof express5],
];

export const compression = require('compression') as (options: object) => RequestHandler;

/** An application with `idempotency` that listens. */
export interface Embedded {
  url: string;
  protect: IdempotencyMiddleware;
  server: Server;
  /** POST with an idempotency key. */
  post(key: string, request?: TestRequest): Promise<TestAnswer>;
}

/** Starts an application, which is closed after the test. `build` adds handlers behind `protect`. */
export async function embed(
  build: (app: Express, protect: IdempotencyMiddleware, express: typeof express5) => void,
  {
    express = express5,
    folder = temporaryFolder(),
    leaseMs = 10_000,
    ...more
  }: Partial<IdempotencyOptions> & { express?: typeof express5; folder?: string; leaseMs?: number } = {},
): Promise<Embedded> {
  const store = more.store ?? (await sqliteStore({ path: folder, timeoutMs: 5000, leaseMs }));
  const protect = idempotency({ merchant: () => 'M-ALPHA', ...more, store });
  const app = express();
  // Express prints the errors of handlers otherwise.
  app.set('env', 'test');
  build(app, protect, express);
  const server = createServer(app);
  const { url, close } = await openBackend(server);
  onTestFinished(async () => {
    await close();
    await protect.close(5000);
    if (!more.store) await store.close();
  });
  const post: Embedded['post'] = (key, request = {}) =>
    send(url, {
      method: 'POST',
      path: '/payouts',
      ...request,
      headers: { 'idempotency-key': key, 'content-type': 'application/json', ...request.headers },
      body: request.body ?? '{"amount":10}',
    });
  return { url, protect, server, post };
}
