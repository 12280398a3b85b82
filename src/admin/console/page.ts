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
        if (error && !res.headersSent) res.status(503).type('html').send(unbuiltPage());
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

const page = (title: string, lines: readonly string[]): string =>
  `<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>${title}</title></head>
<body>
<h1>${title}</h1>
${lines.join('\n')}
</body>
</html>
`;

/** What `/` shows when the console is off. */
export const linksPage = (hasRecords: boolean): string =>
  page('oncegate: admin port', [
    '<ul>',
    '<li><a href="/healthz">/healthz</a>: the process lives</li>',
    '<li><a href="/readyz">/readyz</a>: whether it is ready to serve merchants, and why not</li>',
    '<li><a href="/metrics">/metrics</a>: for Prometheus</li>',
    ...(hasRecords ? ['<li>/records: keys in doubt, for programs that have the admin token</li>'] : []),
    '</ul>',
    '<p>The console is off. It needs <code>admin.token</code> or <code>admin.tokens</code> in the configuration, and no <code>admin.console: false</code>.</p>',
    '<p>docs/runbook has a page for each alert, and says how to resolve a key in doubt. docs/metrics.md explains the metrics. docs/operations.md has the sections Health, The log, and The console.</p>',
  ]);

/** What `/console/` shows when the files of the page are not there. */
const unbuiltPage = (): string =>
  page('oncegate: the console is not built', [
    '<p>The files of the page are missing. In the repository, <code>npm run pages</code> builds them; the npm package and the image contain them.</p>',
    '<p>Meanwhile, <code>oncegate records</code> on the command line lists and resolves keys in doubt.</p>',
  ]);
