import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import express, { Router } from 'express';
import { programFile } from '../../lib/program.ts';
import { allowOnly, refuse } from '../problems.ts';

/** What `npm run pages` writes: `dist/page` in the repository, and the same folder in the compiled package. */
const FOLDER = fileURLToPath(programFile(import.meta.url.endsWith('.ts') ? '../dist/page' : 'page'));

/** The page itself. Everyone may load it: without a session it shows only the login. */
export function pageRoutes(folder = FOLDER): Router {
  const routes = Router({ strict: true });
  routes
    .route('/')
    .get((req, res) => {
      // The URLs in the page are relative to its folder.
      if (!req.originalUrl.startsWith('/console/')) return res.redirect(302, '/console/');
      res.set('Cache-Control', 'no-store');
      const options = { root: folder, cacheControl: false, etag: false, lastModified: false };
      res.sendFile('index.html', { ...options, acceptRanges: false }, (error) => {
        if (error && !res.headersSent) res.status(503).type('text').send(UNBUILT);
      });
    })
    .all(allowOnly('GET, HEAD'));
  // With a hash of its contents in its name, a file never changes.
  const forever = { immutable: true, maxAge: '365d', acceptRanges: false };
  routes.use(
    '/assets',
    express.static(join(folder, 'assets'), { ...forever, index: false, redirect: false }),
  );
  routes
    .route('/assets/:name')
    .get((_req, res) => refuse(res, 'not_found', 'The page has no such file. Load it again.'))
    .all(allowOnly('GET, HEAD'));
  return routes;
}

/** What `/` shows when the console is off. */
export const pathsText = (hasRecords: boolean): string =>
  [
    'The admin port of oncegate.',
    '',
    '/healthz  the process lives',
    '/readyz   whether it is ready to serve merchants, and why not',
    '/metrics  for Prometheus',
    ...(hasRecords ? ['/records  keys in doubt, for programs that have the admin token'] : []),
    '',
    'The console is off. It needs admin.token or admin.tokens in the configuration, and no admin.console: false.',
    'docs/runbook has a page for each alert, and says how to resolve a key in doubt.\n',
  ].join('\n');

const UNBUILT = `The files of the page are missing. In the repository, "npm run pages" builds them; the npm package and the image contain them.
Meanwhile, "oncegate records" on the command line lists and resolves keys in doubt.
`;
