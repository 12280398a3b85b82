import { hash } from 'node:crypto';
import { type RequestHandler, type Response, Router } from 'express';
import { bundleFolder, bundleReader, sendAsset } from './bundle.ts';
import { allowOnly, refuse } from './problems.ts';

/**
 * The renderer is a large program of others, so its page gets no origin (`sandbox`): the browser gives it no cookies and no
 * storage, and refuses every answer of this port to it, those of the console included. It may open no connection either.
 * Downloads are for the links to the files.
 */
const CONTENT_SECURITY_POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  'img-src data:',
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
  'sandbox allow-scripts allow-downloads',
].join('; ');

const TYPES = {
  'index.html': 'text/html; charset=utf-8',
  'openapi.yaml': 'application/yaml',
  'openapi.json': 'application/json; charset=utf-8',
} as const;

/**
 * `/docs`: the merchants' interface as a page, and as the files `openapi.yaml` and `openapi.json`. They are the same in every
 * gateway of a version and have no secrets, so nobody needs a token.
 */
export function docsRoutes(folder = bundleFolder('docs')): Router {
  const routes = Router();
  const read = bundleReader(folder);
  const send =
    (name: keyof typeof TYPES): RequestHandler =>
    (_req, res) => {
      const bytes = read()?.files.get(name);
      if (!bytes) return refuseUnbuilt(res);
      if (name === 'index.html') {
        res.set('Content-Security-Policy', CONTENT_SECURITY_POLICY);
        // A page cannot have both this and a sandbox.
        res.removeHeader('Cross-Origin-Opener-Policy');
      }
      // Browsers ask whether it has changed. Express then answers 304.
      res.set({
        'Content-Type': TYPES[name],
        'Cache-Control': 'no-cache',
        ETag: `"${hash('sha256', bytes)}"`,
      });
      res.send(bytes);
    };
  routes.route('/').get(send('index.html')).all(allowOnly('GET, HEAD'));
  for (const name of ['openapi.yaml', 'openapi.json'] as const)
    routes.route(`/${name}`).get(send(name)).all(allowOnly('GET, HEAD'));
  routes
    .route('/assets/:name')
    // For the browser, the page is another origin than its own files.
    .get(allowEveryOrigin, sendAsset(read))
    .all(allowOnly('GET, HEAD'));
  return routes;
}

const allowEveryOrigin: RequestHandler = (_req, res, next) => {
  res.set('Cross-Origin-Resource-Policy', 'cross-origin');
  next();
};

const refuseUnbuilt = (res: Response): void =>
  refuse(
    res,
    'not_built',
    'The files of the page are missing. In the repository, npm run pages builds them; the npm package and the image contain them. The document itself is config/openapi.yaml.',
  );
