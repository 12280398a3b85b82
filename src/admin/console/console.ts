import { type RequestHandler, Router } from 'express';
import type { AdminSource, AdminTools } from '../application.ts';
import { allowOnly, refuse } from '../problems.ts';
import type { Tries } from '../tries.ts';
import type { Configuration } from './contract.ts';
import { noStore, requireSession } from './guards.ts';
import { checkHost, checkOrigin } from './origin.ts';
import { OverviewReader } from './overview.ts';
import { pageRoutes } from './page.ts';
import { consoleRecords } from './records.ts';
import { LiveSeries } from './series.ts';
import { sessionRoutes } from './session-routes.ts';
import { Sessions } from './sessions.ts';

/** What the gateway logs of the console. */
export interface ConsoleObserver {
  loggedIn(by: string, address: string): void;
  /** Somebody tried to log in with a wrong token. An address that repeats it is reported once in five minutes. */
  wrongLogin(address: string): void;
  /** The stored body of a record was sent to the page. */
  bodyRead(by: string, scope: string, address: string): void;
}

/** Everything under `/console`: the session, the API and the page. The contract lists the requests. */
export function consoleRoutes(source: AdminSource, tools: AdminTools, tries: Tries): Router {
  const sessions = new Sessions(tools.clock);
  const series = new LiveSeries(() => source.metrics(), tools.clock);
  // The charts need samples while somebody uses the console.
  const look: RequestHandler = (_req, _res, next) => {
    series.look();
    next();
  };
  const routes = Router();
  routes.use(checkHost(tools.options));
  routes.use(['/session', '/api'], noStore, checkOrigin);
  routes.use(
    '/session',
    sessionRoutes(sessions, { ...tools, tries }, () => series.look()),
  );
  routes.use('/api', requireSession(sessions), look, apiRoutes(source, series, tools));
  routes.use(pageRoutes());
  routes.use((_req, res) => refuse(res, 'not_found', 'The console has no such path: its page is /console/.'));
  return routes;
}

/** The routes under `/console/api`. The session was checked before. */
function apiRoutes(source: AdminSource, series: LiveSeries, tools: AdminTools): Router {
  const overview = new OverviewReader(source, tools);
  const routes = Router();
  routes
    .route('/overview')
    .get(async (_req, res) => {
      res.json(await overview.read(await series.doubts()));
    })
    .all(allowOnly('GET, HEAD'));
  routes
    .route('/series')
    .get((req, res) => {
      const { since } = req.query;
      res.json(series.since(typeof since === 'string' ? since : undefined));
    })
    .all(allowOnly('GET, HEAD'));
  routes
    .route('/configuration')
    .get(async (_req, res) => {
      const checks = await overview.checks();
      const warnings = checks.find(({ name }) => name === 'configuration')?.warnings ?? [];
      res.json({ ...source.configuration(), warnings } satisfies Configuration);
    })
    .all(allowOnly('GET, HEAD'));
  routes.use(consoleRecords((question) => source.records(question), tools));
  routes.use((_req, res) => refuse(res, 'not_found', 'The console’s API has no such path.'));
  return routes;
}
