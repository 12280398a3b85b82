import { IncomingMessage, ServerResponse } from 'node:http';
import express, { type Express } from 'express';
import type { Middleware } from '../kernel/context.ts';

/** Gives the name of each part of a request's path to what does it. */
export interface RequestPath {
  /** Request id, clock, log line; refuses if too many requests are in flight. */
  admit: Middleware;
  /** Refuses ambiguous targets and heads. */
  checkHead: Middleware;
  /** Secret key → merchant, or 401. */
  authenticate: Middleware;
  /** Which operation it is; reads the body if that depends on it. */
  identify: Middleware;
  /** Whether the secret key may call it, or 403. */
  authorise: Middleware;
  /** A protected request with a key: through the engine to the backend. */
  protect: Middleware;
  /** A request without a key: to the backend. */
  forward: Middleware;
  /** Answers refusals and failures of all of the above. */
  answerRefusal(refusal: unknown, req: IncomingMessage, res: ServerResponse): void;
}

/** The public application, and the classes that its server has to make requests and responses of. */
export interface App {
  handle(req: IncomingMessage, res: ServerResponse): void;
  Request: typeof IncomingMessage;
  Response: typeof ServerResponse;
}

/** The path of every request and every upgrade, from top to bottom. */
export function createApp(path: RequestPath): App {
  const app = express();
  // Responses are the backend's, byte for byte.
  app.disable('x-powered-by').disable('etag');
  // The query is opaque to everything but the operations.
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

/** The path of a request without a path, which the check of its head refuses. */
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
 * Express sets the prototype of each request and response, which makes every later access to them slower. Objects of these
 * classes have that prototype from the beginning.
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
