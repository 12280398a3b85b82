import type { IncomingMessage, ServerResponse } from 'node:http';
import { totalmem } from 'node:os';
import { contextOf, hasBody, onEnd } from '../lib/context.ts';
import { type Problem, problem } from '../lib/problem.ts';

export interface BodyLimits {
  bodyBytes: number;
  bodyTimeoutMs: number;
  /** Shared by all requests of the process. */
  budget: BodyBudget;
}

/** How many bytes of request bodies the process may hold in memory at the same time. */
export class BodyBudget {
  maxBytes: number;
  readonly #whole: BodyBudget | undefined;
  #bytes = 0;

  /** @param whole the budget that this one is a part of */
  constructor(maxBytes: number, whole?: BodyBudget) {
    this.maxBytes = maxBytes;
    this.#whole = whole;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** Returns false if not enough is left. */
  take(bytes: number): boolean {
    if (this.#bytes + bytes > this.maxBytes || this.#whole?.take(bytes) === false) return false;
    this.#bytes += bytes;
    return true;
  }

  giveBack(bytes: number): void {
    this.#bytes -= bytes;
    this.#whole?.giveBack(bytes);
  }
}

/** A quarter of the memory that the process may use: that of its container, or that of the machine. */
export function defaultBudgetBytes(): number {
  const ofContainer = process.constrainedMemory() || Number.POSITIVE_INFINITY;
  return Math.floor(Math.min(ofContainer, totalmem()) / 4);
}

/** The result of reading a body. `gone`: the merchant disconnected before the end. A problem: refuse the request with it. */
export type Taken = 'read' | 'too_large' | 'gone' | Problem;

const NO_BODY = Buffer.alloc(0);

/**
 * Reads the body into the request's context, unless it is there already. Returns a promise only if it has to wait. A body that is too
 * large stays in the request, to be streamed. If its Content-Length says so, no `100 Continue` asks for it.
 */
export function takeBody(
  req: IncomingMessage,
  res: ServerResponse,
  limits: BodyLimits,
): Taken | Promise<Taken> {
  const context = contextOf(req);
  if (context.body) return 'read';
  if (context.isTooLarge || declaredBytes(req) > limits.bodyBytes) return 'too_large';
  // Also for an empty body: without a 100 Continue, Node closes the connection after the answer.
  inviteBody(req, res);
  if (hasBody(req)) return receiveBody(req, limits);
  context.body = NO_BODY;
  return 'read';
}

/** Unlike express.raw this does not inflate, because the backend must get the merchant's bytes. */
function receiveBody(req: IncomingMessage, { bodyBytes, bodyTimeoutMs, budget }: BodyLimits): Promise<Taken> {
  const context = contextOf(req);
  const declared = declaredBytes(req);
  const buffer = new BodyBuffer(declared, bodyBytes);
  let heldBytes = 0;
  const giveBack = () => {
    budget.giveBack(heldBytes);
    heldBytes = 0;
  };
  const { promise, resolve } = Promise.withResolvers<Taken>();
  let isFinished = false;
  let timer: NodeJS.Timeout | undefined;
  const finish = (taken: Taken) => {
    if (isFinished) return;
    isFinished = true;
    clearTimeout(timer);
    if (taken === 'read') context.body = buffer.whole();
    else {
      // After the end of a body no more data comes. `error` keeps its listener: a later error would be thrown without one.
      req.off('data', onData).off('end', onWhole);
      req.pause();
    }
    resolve(taken);
  };
  const onData = (chunk: Buffer) => {
    if (buffer.bytes + chunk.length > bodyBytes) {
      finish('too_large');
      context.isTooLarge = true;
      req.unshift(Buffer.concat([buffer.whole(), chunk]));
      // The body is not held any more: it is streamed or refused. An upload may last for minutes, so its memory is free for others.
      giveBack();
    } else if (budget.take(chunk.length)) {
      // The body is held until the request has ended, even if its merchant disconnects before.
      if (heldBytes === 0) onEnd(context, giveBack);
      heldBytes += chunk.length;
      buffer.add(chunk);
    } else {
      const detail = 'Too many request bodies are held in memory. The request was not sent; retry.';
      finish(problem('overloaded', detail));
    }
  };
  const onWhole = () => finish('read');
  const onClose = () => finish('gone');
  req.on('data', onData).on('end', onWhole).on('close', onClose).on('error', onClose);
  // Most bodies arrive in the same packet as their head. Node emits their data before this microtask: no timer is needed.
  queueMicrotask(() => {
    if (isFinished || (declared > 0 && buffer.bytes === declared)) return;
    timer = setTimeout(() => finish(lateBody(bodyTimeoutMs)), bodyTimeoutMs);
  });
  return promise;
}

export const lateBody = (bodyTimeoutMs: number): Problem =>
  problem('request_timeout', `The request body did not arrive within ${bodyTimeoutMs} ms.`);

export const tooLargeBody = (bodyBytes: number): Problem =>
  problem('body_too_large', `The request body is larger than ${bodyBytes} bytes.`);

/** Takes the body of a request that must be held in memory: as {@link takeBody}, but a body that is too large is a problem. */
export async function takeWholeBody(
  req: IncomingMessage,
  res: ServerResponse,
  limits: BodyLimits,
): Promise<'read' | 'gone' | Problem> {
  const taken = await takeBody(req, res, limits);
  if (taken !== 'too_large') return taken;
  return tooLargeBody(limits.bodyBytes);
}

/** Sends `100 Continue` if the merchant waits for it. Must not be called before the request was authenticated. */
export function inviteBody(req: IncomingMessage, res: ServerResponse): void {
  const context = contextOf(req);
  const waits = req.headers.expect !== undefined && req.httpVersion !== '1.0' && !context.isInvited;
  if (!waits || res.headersSent || res.destroyed) return;
  context.isInvited = true;
  res.writeContinue();
}

const declaredBytes = (req: IncomingMessage): number => Number(req.headers['content-length'] ?? 0);

/** First capacity for a body with a Content-Length. Larger bodies get more only as their bytes arrive. */
const DECLARED_BYTES = 65_536;
/** First capacity for a chunked body. */
const UNDECLARED_BYTES = 1024;

/**
 * Collects a body in one buffer. When the buffer is full, it grows to twice the bytes received, or to its first capacity.
 * A list of chunks would take about 400 bytes for each chunk, and a hostile client can send chunks of one byte.
 */
class BodyBuffer {
  bytes = 0;
  readonly #maxCapacity: number;
  readonly #minCapacity: number;
  #buffer: Buffer = Buffer.alloc(0);

  constructor(declaredBytes: number, maxBytes: number) {
    this.#maxCapacity = declaredBytes > 0 ? Math.min(declaredBytes, maxBytes) : maxBytes;
    this.#minCapacity = declaredBytes > 0 ? DECLARED_BYTES : UNDECLARED_BYTES;
  }

  add(chunk: Buffer): void {
    const bytes = this.bytes + chunk.length;
    if (this.bytes === 0) {
      // Most bodies are a single chunk, which is used without a copy.
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
    const capacity = Math.min(this.#maxCapacity, Math.max(2 * bytes, this.#minCapacity));
    const grown = Buffer.allocUnsafeSlow(capacity);
    this.#buffer.copy(grown, 0, 0, this.bytes);
    this.#buffer = grown;
  }
}
