import type { IncomingMessage, ServerResponse } from 'node:http';
import { type Execute, jsonReply, sleepFor } from './reply.ts';
import { digestBody, headerPairs, numberFrom, requestQuery } from './request.ts';

/** Any method on /v3/echo: replies with the request as it was received. The body, of any size, is shown as its digest. */
export async function echoRoute(request: IncomingMessage): Promise<Execute> {
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

/** GET /v3/stream?chunks=N&intervalMs=MS: sends N server-sent events, and flushes each of them. */
export async function streamEcho(request: IncomingMessage, response: ServerResponse): Promise<void> {
  const query = requestQuery(request);
  const chunks = numberFrom(query, 'chunks', { fallback: 5, max: 100_000 });
  const intervalMs = numberFrom(query, 'intervalMs', { fallback: 100, max: 600_000 });
  response.writeHead(200, ['Content-Type', 'text/event-stream', 'Cache-Control', 'no-store']);
  response.flushHeaders();
  for (let chunk = 1; chunk <= chunks && !response.destroyed; chunk += 1) {
    if (chunk > 1) await sleepFor(intervalMs);
    response.write(`data: chunk ${chunk}\n\n`);
  }
  response.end();
}
