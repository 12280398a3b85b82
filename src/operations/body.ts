import type { IncomingMessage } from 'node:http';

/** The whole body, or why it could not be had. `aborted`: the merchant left before its end. */
export type BodyResult = { kind: 'body'; body: Buffer } | { kind: 'too_large' | 'timeout' | 'aborted' };

/** Does Content-Length say that the body is too large? Then it is neither invited nor read. */
export function declaredTooLarge(req: IncomingMessage, maxBytes: number): boolean {
  return Number(req.headers['content-length'] ?? 0) > maxBytes;
}

/**
 * Reads a request's body as raw bytes, bounded in size and time. (express.raw inflates by default, so that the bytes
 * would no longer be the merchant's.)
 *
 * @param maxBytes refused as soon as it passes
 */
export function readBody(req: IncomingMessage, maxBytes: number, timeoutMs: number): Promise<BodyResult> {
  return new Promise((resolve) => {
    const chunks: Buffer[] = [];
    let bytes = 0;
    const timer = setTimeout(() => finish({ kind: 'timeout' }), timeoutMs);
    const onData = (chunk: Buffer) => {
      bytes += chunk.length;
      if (bytes > maxBytes) finish({ kind: 'too_large' });
      else chunks.push(chunk);
    };
    const onEnd = () => finish({ kind: 'body', body: Buffer.concat(chunks) });
    const onClose = () => finish({ kind: 'aborted' });
    const finish = (result: BodyResult) => {
      clearTimeout(timer);
      req.off('data', onData).off('end', onEnd).off('close', onClose).off('error', onClose);
      // A listener must stay, or a later error of the socket would be thrown.
      req.on('error', () => {});
      if (result.kind !== 'body') req.pause();
      resolve(result);
    };
    req.on('data', onData).on('end', onEnd).on('close', onClose).on('error', onClose);
  });
}
