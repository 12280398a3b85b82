import { Router } from 'express';
import { bundleFolder, bundleReader, sendAsset } from '../bundle.ts';
import { unbuiltPage } from '../headers.ts';
import { allowOnly } from '../problems.ts';

/** The page itself. Everyone may load it: without a session it shows only the login. */
export function pageRoutes(folder = bundleFolder('console')): Router {
  const routes = Router({ strict: true });
  const read = bundleReader(folder);
  routes
    .route('/')
    .get((req, res) => {
      // The URLs in the page are relative to its folder.
      if (!req.originalUrl.startsWith('/console/')) return res.redirect(302, '/console/');
      res.set('Cache-Control', 'no-store').type('html');
      const page = read()?.files.get('index.html');
      if (page) res.send(page);
      else res.status(503).send(unbuiltPage());
    })
    .all(allowOnly('GET, HEAD'));
  routes.route('/assets/:name').get(sendAsset(read)).all(allowOnly('GET, HEAD'));
  return routes;
}
