import type { IncomingMessage, ServerResponse } from 'node:http';
import { attachContext, type RequestContext } from '../../src/lib/context.ts';
import { BodyBudget, type Taken, takeBody } from '../../src/requests/body.ts';

/** Takes the body of a request that no middleware has seen. */
export async function bodyOf(
  req: IncomingMessage,
  bodyBytes: number,
  bodyTimeoutMs: number,
): Promise<{ taken: Taken; body?: Buffer }> {
  const context = {} as RequestContext;
  attachContext(req, context);
  const budget = new BodyBudget(Number.POSITIVE_INFINITY);
  const taken = await takeBody(req, {} as ServerResponse, { bodyBytes, bodyTimeoutMs, budget });
  return { taken, ...(context.body && { body: context.body }) };
}
