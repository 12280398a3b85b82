import express, { type ErrorRequestHandler, type Express, type Request, Router } from 'express';
import type { Emit, Told } from '../telemetry/emit.ts';
import type { MetricsFormat } from '../telemetry/metrics.ts';
import type { AdminOptions } from './admin-options.ts';
import { consoleRoutes } from './console/console.ts';
import { checkHost, checkOrigin, isFromPage } from './console/origin.ts';
import { pathsText } from './console/page.ts';
import { requireSession } from './console/request-checks.ts';
import { allowOnly, refuse } from './problems.ts';
import { recordsRoutes, refuseOff } from './records-routes.ts';
import { securityHeaders } from './security-headers.ts';
import type { AdminSource, AdminTools } from './source.ts';
import { requireToken } from './tokens.ts';
import { Tries } from './tries.ts';

/**
 * The admin application: `/healthz`, `/readyz`, `/metrics`, and with a token `/records` and `/console/`. Everything else is a
 * problem document.
 */
export function createAdmin(source: AdminSource, tools: AdminTools): Express {
  const { token, console: isOn, tokens } = tools.options;
  const { sessions } = tools;
  // One for the whole port: logins and programs have the same token.
  const tries = new Tries(tools.clock);
  const checkToken = (path: Told<'wrong_token'>['path'], accepted: Pick<AdminOptions, 'token' | 'tokens'>) =>
    requireToken(accepted, tries, (client) => tools.emit('wrong_token', { path, client }));
  const bySession = Router().use(checkHost(tools.options), checkOrigin, requireSession(sessions));
  // Without a token, everyone who can reach the port could release a key.
  const byToken = token === undefined ? refuseOff : checkToken('/records', { token, tokens: [] });
  // A token that may only read the metrics cannot log in.
  const options = { ...tools.options, tokens: tokens.filter(({ only }) => only === undefined) };
  const hasConsole = isOn && (token !== undefined || options.tokens.length > 0);
  const app = express();
  app.disable('x-powered-by').disable('etag');
  app.use(securityHeaders);
  app.get('/', (_req, res) => {
    res.set('Cache-Control', 'no-store');
    if (hasConsole) res.redirect(302, '/console/');
    else res.type('text').send(pathsText(token !== undefined));
  });
  app.get('/healthz', (_req, res) => {
    res.json({ status: 'ok' });
  });
  app.get('/readyz', async (_req, res) => {
    const checks = await source.readiness.checks();
    const ready = checks.every((check) => check.ok);
    res.status(ready ? 200 : 503).json({ status: ready ? 'ready' : 'not ready', checks });
  });
  // Whatever scrapes needs no token that can release a key.
  app.get('/metrics', checkToken('/metrics', tools.options), async (req, res) => {
    const format = formatFor(req);
    const text = await source.metrics.text(format);
    res.set('Vary', 'Accept').type(MEDIA_TYPES[format]).send(text);
  });
  app.all(['/', '/healthz', '/readyz', '/metrics'], allowOnly('GET, HEAD'));
  app.use(
    '/records',
    (req, res, next) => (hasConsole && isFromPage(req) ? bySession : byToken)(req, res, next),
    recordsRoutes(source.desk, tools.emit),
  );
  if (hasConsole) app.use('/console', consoleRoutes(source, { ...tools, options }, tries, sessions));
  else app.use('/console', (_req, res) => refuse(res, 'console_off', whyOff(isOn)));
  app.use((_req, res) =>
    refuse(res, 'not_found', 'The paths are /, /healthz, /readyz, /metrics, /records and /console/.'),
  );
  app.use(failed(tools.emit));
  return app;
}

const whyOff = (isOn: boolean): string =>
  isOn
    ? 'The console needs admin.token or admin.tokens in the configuration.'
    : 'The configuration has admin.console: false.';

/** Express refuses a path that it cannot decode. Every other error is the gateway's. */
const failed =
  (emit: Emit): ErrorRequestHandler =>
  (error: { status?: unknown } | undefined, _req, res, _next) => {
    if (error?.status === 400) refuse(res, 'invalid', 'The path cannot be decoded.');
    else {
      emit('admin_failed', { err: error });
      refuse(res, 'internal', 'The reason is in the log.');
      // An answer that has begun cannot be completed.
      if (!res.writableEnded) res.destroy();
    }
  };

const MEDIA_TYPES: Readonly<Record<MetricsFormat, string>> = {
  text: 'text/plain; version=0.0.4; charset=utf-8',
  openmetrics: 'application/openmetrics-text; version=1.0.0; charset=utf-8',
};

/**
 * OpenMetrics for scrapers that prefer it, as Prometheus does; text for all others. Prometheus 3 asks for names with any characters
 * (`escaping`), which our names do not need.
 */
function formatFor(req: Request): MetricsFormat {
  const openMetrics = 'application/openmetrics-text; version=1.0.0';
  const accepted = req.accepts([
    ...['text/plain; version=0.0.4', openMetrics],
    ...['allow-utf-8', 'underscores', 'values'].map((escaping) => `${openMetrics}; escaping=${escaping}`),
  ]);
  return String(accepted).startsWith('application/') ? 'openmetrics' : 'text';
}
