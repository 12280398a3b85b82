import { IncomingMessage, ServerResponse } from 'node:http';
import express, { type Express } from 'express';
import type { Middleware } from '../lib/context.ts';

/** The middleware of every request, in order. */
export interface RequestPath {
  /** Begins the request id, the clock and the log line. Refuses the request if too many are in flight. */
  admit: Middleware;
  /** Refuses malformed heads and ambiguous targets. */
  checkHead: Middleware;
  /** Sends a request on a public path straight to `forward`. Undefined: there are no public paths. */
  forwardPublic?: Middleware | undefined;
  /** Finds the merchant of the secret key, or refuses with 401. */
  authenticate: Middleware;
  /** Refuses a request of a merchant who sends too many. Undefined: merchants have no limits. */
  limitMerchant?: Middleware | undefined;
  /** Finds the operation. Reads the body if the operation depends on it. */
  identify: Middleware;
  /** Refuses with 403 if the secret key may not call the operation. */
  authorise: Middleware;
  /** Sends a protected request with a key through the engine to the backend. */
  protect: Middleware;
  /** Sends every other request to the backend. */
  forward: Middleware;
  /** Answers the refusals and errors of all of the above. */
  answerRefusal(refusal: unknown, req: IncomingMessage, res: ServerResponse): void;
}

/** The public application, and the classes that its HTTP server must use for requests and responses. */
export interface App {
  handle(req: IncomingMessage, res: ServerResponse): void;
  Request: typeof IncomingMessage;
  Response: typeof ServerResponse;
}

/**
 * Builds the Express application. Requests and upgrades pass the same middleware, from top to bottom.
 *
 * @param classes those of an earlier application whose HTTP server this one shall take over
 */
export function createApp(path: RequestPath, classes?: Pick<App, 'Request' | 'Response'>): App {
  const app = express();
  // Express must not change the backend's responses: they are sent byte for byte.
  app.disable('x-powered-by').disable('etag');
  // Express must not parse the query: only `identify` reads it.
  app.set('query parser', false);
  app.use(path.admit);
  app.use(path.checkHead);
  if (path.forwardPublic) app.use(path.forwardPublic);
  app.use(path.authenticate);
  if (path.limitMerchant) app.use(path.limitMerchant);
  app.use(path.identify);
  app.use(path.authorise);
  app.use(path.protect);
  app.use(path.forward);
  const { Request, Response } = classes ?? classesOf(app);
  // Express reads these two as prototypes; its types say that they are whole requests and responses.
  app.request = Request.prototype as unknown as Express['request'];
  app.response = Response.prototype as unknown as Express['response'];
  return {
    ...{ Request, Response },
    handle(req, res) {
      // Express calls this with an error, with a refusal, or with nothing if no middleware has answered. It does so in a later
      // turn of the event loop, when a body that came in the same packet has been read: then the connection can be kept.
      const end = (refusal: unknown = new Error('no middleware has answered')) =>
        path.answerRefusal(refusal, req, res);
      // Express runs no middleware for a target that has no path, such as a://. It is admitted, and `checkHead` refuses it.
      if (!req.url?.startsWith('/'))
        void path.admit(req, res, (refusal) =>
          refusal === undefined ? void path.checkHead(req, res, end) : end(refusal),
        );
      // The types of Express lack this method of applications.
      else void (app as unknown as Record<'handle', Middleware>).handle(req, res, end);
    },
  };
}

/**
 * Express calls `setPrototypeOf` on each request and response, which makes every later access to them slower. Objects of
 * these classes already have Express's prototypes, so the call changes nothing.
 */
function classesOf(app: Express): Pick<App, 'Request' | 'Response'> {
  class Request extends IncomingMessage {}
  class Response extends ServerResponse {}
  Object.setPrototypeOf(Request.prototype, app.request);
  Object.setPrototypeOf(Response.prototype, app.response);
  return { Request, Response: Response as typeof ServerResponse };
}
