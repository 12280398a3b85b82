import type { IncomingMessage } from 'node:http';

/**
 * The whole body, or why it could not be had. `aborted`: the merchant left before its end. `read` is what came of a body
 * that is too large, the chunk that passed the limit included: `req.unshift(read)` makes the request whole again.
 */
export type BodyResult =
  | { kind: 'body'; body: Buffer }
  | { kind: 'too_large'; read: Buffer }
  | { kind: 'timeout' | 'aborted' };

/** Does Content-Length say that the body is too large? Then it is neither invited nor read. */
export function declaredTooLarge(req: IncomingMessage, maxBytes: number): boolean {
  return declaredBytes(req) > maxBytes;
}

const declaredBytes = (req: IncomingMessage): number => Number(req.headers['content-length'] ?? 0);

/**
 * Reads a request's body as raw bytes, bounded in size and time. (express.raw inflates by default, so that the bytes
 * would no longer be the merchant's.) After any result but `body` the request is paused.
 *
 * @param maxBytes refused as soon as it passes
 */
export function readBody(req: IncomingMessage, maxBytes: number, timeoutMs: number): Promise<BodyResult> {
  return new Promise((resolve) => {
    const declared = declaredBytes(req);
    const collected = new Collected(declared, maxBytes);
    let over = false;
    let timer: NodeJS.Timeout | undefined;
    const onData = (chunk: Buffer) => {
      if (collected.bytes + chunk.length <= maxBytes) collected.add(chunk);
      else finish({ kind: 'too_large', read: Buffer.concat([collected.whole(), chunk]) });
    };
    const onEnd = () => finish({ kind: 'body', body: collected.whole() });
    const onClose = () => finish({ kind: 'aborted' });
    const finish = (result: BodyResult) => {
      over = true;
      clearTimeout(timer);
      req.off('data', onData).off('end', onEnd).off('close', onClose).off('error', onClose);
      // A listener must stay, or a later error of the socket would be thrown.
      req.on('error', () => {});
      if (result.kind !== 'body') req.pause();
      resolve(result);
    };
    req.on('data', onData).on('end', onEnd).on('close', onClose).on('error', onClose);
    // Most bodies come in the same packet as their head. Node hands them over before this, and they need no timer.
    queueMicrotask(() => {
      if (over || (declared > 0 && collected.bytes === declared)) return;
      timer = setTimeout(() => finish({ kind: 'timeout' }), timeoutMs);
    });
  });
}

/** Space that a body of a declared length gets at once. A larger one has to send that much first. */
const DECLARED_BYTES = 65_536;
const UNDECLARED_BYTES = 1024;

/**
 * A body in one buffer that grows with it, to at most twice its size. A list of chunks would take some 400 bytes for each
 * chunk, and a chunk may have one byte.
 */
class Collected {
  bytes = 0;
  readonly #mostBytes: number;
  readonly #leastBytes: number;
  #buffer: Buffer = Buffer.alloc(0);

  constructor(declaredBytes: number, maxBytes: number) {
    this.#mostBytes = declaredBytes > 0 ? Math.min(declaredBytes, maxBytes) : maxBytes;
    this.#leastBytes = declaredBytes > 0 ? DECLARED_BYTES : UNDECLARED_BYTES;
  }

  add(chunk: Buffer): void {
    const bytes = this.bytes + chunk.length;
    if (this.bytes === 0) {
      // Most bodies are one chunk, which needs no copy.
      this.#buffer = chunk;
    } else {
      if (bytes > this.#buffer.length) this.#grow(bytes);
      chunk.copy(this.#buffer, this.bytes);
    }
    this.bytes = bytes;
  }

  whole(): Buffer {
    return this.#buffer.subarray(0, this.bytes);
  }

  #grow(bytes: number): void {
    const capacity = Math.min(this.#mostBytes, Math.max(2 * bytes, this.#leastBytes));
    const grown = Buffer.allocUnsafeSlow(capacity);
    this.#buffer.copy(grown, 0, 0, this.bytes);
    this.#buffer = grown;
  }
}
