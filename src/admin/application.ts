import { hash, timingSafeEqual } from 'node:crypto';
import express, { type Express, type RequestHandler } from 'express';
import { problem, sendProblem } from '../kernel/problem.ts';
import type { AskRecords } from '../kernel/records.ts';
import { recordsRoutes, refuseOff } from './records.ts';

/** One condition of readiness. */
export interface Check {
  name: 'store' | 'upstream' | 'keys' | 'draining' | 'workers' | 'operations';
  ok: boolean;
  detail: string;
  /** Settings that weaken the promise: a store that can lose records, a policy that can pay twice. */
  warnings?: string[];
}

/** What the admin port serves, for one process or for all workers together. */
export interface AdminSource {
  /** Prometheus text format. */
  metrics(): Promise<string>;
  checks(): Promise<Check[]>;
  records: AskRecords;
}

/** The admin application: `/healthz`, `/readyz`, `/metrics`, and with a token `/records`. */
export function createAdmin(source: AdminSource, token: string | undefined): Express {
  const app = express();
  app.disable('x-powered-by').disable('etag');
  app.get('/healthz', (_req, res) => {
    res.json({ status: 'ok' });
  });
  app.get('/readyz', async (_req, res) => {
    const checks = await source.checks();
    const ready = checks.every((check) => check.ok);
    res.status(ready ? 200 : 503).json({ status: ready ? 'ready' : 'not ready', checks });
  });
  app.get('/metrics', requireToken(token), async (_req, res) => {
    res.type('text/plain; version=0.0.4; charset=utf-8').send(await source.metrics());
  });
  // Without a token, everyone who can reach the port could release a key.
  if (token === undefined) app.use('/records', (_req, res) => refuseOff(res));
  else
    app.use(
      '/records',
      requireToken(token),
      recordsRoutes((question) => source.records(question)),
    );
  return app;
}

/** Without a token every request is accepted. The configuration then allows the port on loopback addresses only. */
function requireToken(token: string | undefined): RequestHandler {
  return (req, res, next) => {
    if (token === undefined || sameText(req.headers.authorization ?? '', `Bearer ${token}`)) return next();
    const headers = { 'WWW-Authenticate': 'Bearer realm="oncegate admin"' };
    sendProblem(res, problem('missing_credentials', 'The admin token is required.', { headers }), '-');
  };
}

/** Constant-time comparison. The digests have one length, which `timingSafeEqual` requires. */
function sameText(a: string, b: string): boolean {
  return timingSafeEqual(Buffer.from(hash('sha256', a)), Buffer.from(hash('sha256', b)));
}
