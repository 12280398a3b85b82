import { Router } from 'express';
import { allowOnly, refuse } from '../problems.ts';
import type { AdminSource, AdminTools } from '../source.ts';
import type { Tries } from '../tries.ts';
import { checkHost, checkOrigin } from './origin.ts';
import { pageRoutes } from './page.ts';
import { noStore, requireSession } from './request-checks.ts';
import { sessionRoutes } from './session-routes.ts';
import type { Sessions } from './sessions.ts';

/** Everything under `/console`: the session, the overview and the page. The contract lists the requests. */
export function consoleRoutes(
  source: AdminSource,
  tools: AdminTools,
  tries: Tries,
  sessions: Sessions,
): Router {
  const routes = Router();
  routes.use(checkHost(tools.options));
  routes.use(['/session', '/api'], noStore, checkOrigin);
  routes.use('/session', sessionRoutes(sessions, { ...tools, tries }));
  routes.use('/api', requireSession(sessions));
  routes
    .route('/api/overview')
    .get(async (req, res) => {
      res.json(await source.overview.read(Number(req.query.after ?? -1)));
    })
    .all(allowOnly('GET, HEAD'));
  routes.use('/api', (_req, res) => refuse(res, 'not_found', 'The console’s API has no such path.'));
  routes.use(pageRoutes());
  routes.use((_req, res) => refuse(res, 'not_found', 'The console has no such path: its page is /console/.'));
  return routes;
}
