import { createHash } from 'node:crypto';
import type { IncomingMessage } from 'node:http';

export const MAX_BODY_BYTES = 1_048_576;

/**
 * The whole body, or undefined when it is larger than the limit. A body that is too large is read to its end
 * and thrown away: answering in the middle of it would reset the connection, and the client would never see
 * why.
 */
export async function readBody(request: IncomingMessage): Promise<Buffer | undefined> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (bytes <= MAX_BODY_BYTES) chunks.push(chunk);
    else chunks.length = 0;
  }
  return bytes > MAX_BODY_BYTES ? undefined : Buffer.concat(chunks);
}

/** Length and SHA-256 of a body of any size, which is never held. */
export async function digestBody(request: IncomingMessage): Promise<{ bytes: number; sha256: string }> {
  const hash = createHash('sha256');
  let bytes = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    hash.update(chunk);
  }
  return { bytes, sha256: hash.digest('hex') };
}
