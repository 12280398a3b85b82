import type { IncomingMessage, ServerResponse } from 'node:http';

/**
 * One part of a request's path, as Express runs it: it answers, or calls `next`. With a {@link Problem} or an error as
 * argument, `next` ends the path with that.
 */
export type Middleware = (
  req: IncomingMessage,
  res: ServerResponse,
  next: (refusal?: unknown) => void,
) => void | Promise<void>;
