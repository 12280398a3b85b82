import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http';

/** One step of a request's path: answers, or passes it on. Fits into Express as middleware. */
export type Step = (
  req: IncomingMessage,
  res: ServerResponse,
  next: (error?: unknown) => void,
) => void | Promise<void>;

/**
 * Steps one after the other, without a router: every request goes this way, and Express gives each request and answer
 * other prototypes, which makes all that handles them slower.
 *
 * @param failed told of what a step throws, rejects with, or passes to `next`
 */
export function path(
  steps: readonly Step[],
  failed: (error: unknown, req: IncomingMessage, res: ServerResponse) => void,
): RequestListener {
  return (req, res) => {
    const fail = (error: unknown): void => {
      try {
        failed(error, req, res);
      } catch {
        res.destroy();
      }
    };
    const walk = (at: number): void => {
      const step = steps[at];
      if (!step) {
        fail(new Error('no step of the path has answered'));
        return;
      }
      try {
        step(req, res, (error) => (error === undefined ? walk(at + 1) : fail(error)))?.catch(fail);
      } catch (error) {
        fail(error);
      }
    };
    walk(0);
  };
}
