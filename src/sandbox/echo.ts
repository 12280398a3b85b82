import type { IncomingMessage, ServerResponse } from 'node:http';
import { digestBody } from './body.ts';
import type { Pause } from './delivery.ts';
import { type Execution, jsonReply } from './reply.ts';
import { headerPairs } from './requests.ts';
import { numberFrom, queryOf } from './target.ts';

/** ANY /v3/echo: what arrived, as it arrived. The body may be of any size; it is answered with its digest. */
export async function echoRoute(request: IncomingMessage): Promise<Execution> {
  const { bytes, sha256 } = await digestBody(request);
  return () =>
    jsonReply(200, {
      method: request.method,
      url: request.url,
      httpVersion: request.httpVersion,
      rawHeaders: headerPairs(request.rawHeaders),
      bodyBytes: bytes,
      bodySha256: sha256,
    });
}

/** GET /v3/stream?chunks=N&intervalMs=MS: N server-sent events, each one flushed by itself. */
export async function stream(
  request: IncomingMessage,
  response: ServerResponse,
  pause: Pause,
): Promise<void> {
  const query = queryOf(request);
  const chunks = numberFrom(query, 'chunks', { fallback: 5, max: 100_000 });
  const intervalMs = numberFrom(query, 'intervalMs', { fallback: 100, max: 600_000 });
  response.writeHead(200, ['Content-Type', 'text/event-stream', 'Cache-Control', 'no-store']);
  response.flushHeaders();
  for (let chunk = 1; chunk <= chunks && !response.destroyed; chunk += 1) {
    if (chunk > 1) await pause(intervalMs);
    response.write(`data: chunk ${chunk}\n\n`);
  }
  response.end();
}
