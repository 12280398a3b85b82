import { IncomingMessage, ServerResponse } from 'node:http';
import express, { type Express } from 'express';
import type { Middleware } from '../kernel/context.ts';

/** The middleware of every request, in order. */
export interface RequestPath {
  /** Begins the request id, the clock and the log line. Refuses the request if too many are in flight. */
  admit: Middleware;
  /** Refuses malformed heads and ambiguous targets. */
  checkHead: Middleware;
  /** Finds the merchant of the secret key, or refuses with 401. */
  authenticate: Middleware;
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

/** Builds the Express application. Requests and upgrades pass the same middleware, from top to bottom. */
export function createApp(path: RequestPath): App {
  const app = express();
  // Express must not change the backend's responses: they are sent byte for byte.
  app.disable('x-powered-by').disable('etag');
  // Express must not parse the query: only `identify` reads it.
  app.set('query parser', false);
  app.use(path.admit);
  app.use(path.checkHead);
  app.use(path.authenticate);
  app.use(path.identify);
  app.use(path.authorise);
  app.use(path.protect);
  app.use(path.forward);
  return {
    ...classesOf(app),
    handle(req, res) {
      // Express calls this with an error, with a refusal, or with nothing if no middleware has answered.
      const end = (refusal: unknown = new Error('no middleware has answered')) =>
        path.answerRefusal(refusal, req, res);
      // Express runs no middleware for a target that has no path, such as a://.
      if (!req.url?.startsWith('/')) refuseTarget(path, req, res, end);
      else (app as unknown as Handler).handle(req, res, end);
    },
  };
}

/** Admits a request whose target has no path, and lets `checkHead` refuse it. */
function refuseTarget(
  { admit, checkHead }: RequestPath,
  req: IncomingMessage,
  res: ServerResponse,
  end: (refusal?: unknown) => void,
): void {
  void admit(req, res, (refusal) => {
    if (refusal === undefined) void checkHead(req, res, end);
    else end(refusal);
  });
}

interface Handler {
  handle(req: IncomingMessage, res: ServerResponse, end: (error?: unknown) => void): void;
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
  app.request = Request.prototype as unknown as Express['request'];
  app.response = Response.prototype as unknown as Express['response'];
  return { Request, Response: Response as typeof ServerResponse };
}
