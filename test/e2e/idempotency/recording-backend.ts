import { createServer } from 'node:http';
import { buffer } from 'node:stream/consumers';
import { openBackend } from '../../support/backend.ts';

export interface Received {
  method: string;
  target: string;
  rawHeaders: string[];
  body: Buffer;
}

/** A backend that answers each request with the same bytes, and keeps the requests byte for byte. */
export interface RecordingBackend extends AsyncDisposable {
  url: string;
  received: Received[];
}

/** @param answer the whole response, from its status line on; then the connection is closed */
export async function startRecordingBackend(answer: string | Buffer): Promise<RecordingBackend> {
  const received: Received[] = [];
  const server = createServer(async (req, res) => {
    const body = await buffer(req);
    const { method = '', url: target = '', rawHeaders } = req;
    received.push({ method, target, rawHeaders, body });
    res.socket?.end(answer);
  });
  const { url, close } = await openBackend(server);
  return { url, received, [Symbol.asyncDispose]: close };
}

/** The values of a header, one for each of its lines. */
export function linesOf(rawHeaders: readonly string[], name: string): string[] {
  return rawHeaders.filter((_, at) => at % 2 === 1 && rawHeaders[at - 1]?.toLowerCase() === name);
}
