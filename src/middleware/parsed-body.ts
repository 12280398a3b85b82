import type { IncomingMessage } from 'node:http';
import { hasBody } from '../lib/context.ts';
import type { Problem } from '../lib/problem.ts';
import { type BodyLimits, lateBody, tooLargeBody } from '../requests/body.ts';
import { executionOf } from './handler-request.ts';

/** The application that uses the middleware bounds how many requests it takes. */
type Limits = Omit<BodyLimits, 'budget'>;

/** A request as body parsers leave it. */
export type ParsedRequest = IncomingMessage & {
  body?: unknown;
  rawBody?: unknown;
  file?: unknown;
  files?: unknown;
};

/**
 * A request's body for the fingerprint. `isRaw`: these are the bytes that the merchant sent, and not what a body parser has made of
 * them: an object, or decompressed bytes.
 */
export type FoundBody = { bytes: Buffer; isRaw: boolean };

const NO_BODY = Buffer.alloc(0);

/**
 * Finds a request's body: in `req.rawBody`, in the request itself if no one has read it yet, or in `req.body`. A body that is
 * read here is put back, so that the handler or a body parser can read it again.
 *
 * @throws {Error} with a message for the developer if the body was read and cannot be found
 */
export async function bodyOf(req: ParsedRequest, limits: Limits): Promise<FoundBody | 'gone' | Problem> {
  const { rawBody, body } = req;
  const isRaw = !hasContentCoding(req);
  if (Buffer.isBuffer(rawBody)) return { bytes: rawBody, isRaw };
  if (!hasBody(req)) return { bytes: NO_BODY, isRaw: true };
  if (!req.readableDidRead) return await peekBody(req, limits);
  if (Buffer.isBuffer(body)) return { bytes: body, isRaw };
  if (req.file !== undefined || req.files !== undefined)
    throw new Error(
      'idempotency() cannot compare uploaded files: place it before the upload parser, or give it `body`',
    );
  if (body === undefined)
    throw new Error(
      'another middleware has read the body before idempotency(): keep it in req.rawBody or req.body',
    );
  return { bytes: Buffer.from(plainJson(body)), isRaw: false };
}

/** Whether another middleware has read a part of the body, or reads it. `idempotency` puts back what it has read. */
export const isBodyTaken = (req: IncomingMessage): boolean =>
  hasBody(req) &&
  (req.readableEnded ||
    isBeingRead(req) ||
    (req.readableDidRead && req.readableLength !== executionOf(req)?.rawBody?.length));

/** Whether another middleware is about to read the body, or has made it decode the bytes. */
const isBeingRead = (req: IncomingMessage): boolean =>
  req.readableEncoding !== null || req.listenerCount('data') > 0 || req.listenerCount('readable') > 0;

/** Body parsers decompress, also what they hand to `verify`, and leave the header field as it was. */
const hasContentCoding = ({ headers }: IncomingMessage): boolean =>
  !['', 'identity'].includes((headers['content-encoding'] ?? '').trim().toLowerCase());

/** @throws {Error} if JSON would not show all of the value: of a `Map` or a `FormData` it shows nothing */
function plainJson(body: unknown): string {
  return JSON.stringify(body, function (this: Record<string, unknown>, name, shown) {
    // `toJSON` shows something else than the value.
    if (shown !== this[name] || !isPlain(shown))
      throw new Error(
        'idempotency() compares bodies that are Buffers or JSON values, and a parser has made something else of this one: place it before the parser, or give it `body`',
      );
    return shown;
  });
}

function isPlain(value: unknown): boolean {
  if (value === null || ['string', 'boolean', 'undefined'].includes(typeof value)) return true;
  if (typeof value === 'number') return Number.isFinite(value);
  if (typeof value !== 'object') return false;
  if (Array.isArray(value)) return !value.includes(undefined);
  const prototype = Object.getPrototypeOf(value);
  // Some parsers make objects without a prototype, and each realm has an Object.prototype of its own.
  return prototype === null || Object.getPrototypeOf(prototype) === null;
}

/** Reads the body and puts it back. On every result but the body, the request is left unread. */
async function peekBody(
  req: IncomingMessage,
  { bodyBytes, bodyTimeoutMs }: Limits,
): Promise<FoundBody | 'gone' | Problem> {
  const declared = Number(req.headers['content-length'] ?? 0);
  if (declared > bodyBytes) return tooLargeBody(bodyBytes);
  if (isBeingRead(req))
    throw new Error(
      'another middleware reads the body before idempotency(): keep it in req.rawBody or req.body',
    );
  // Node may not have parsed the end of a chunked body yet. An empty one must stay unread: its `end` comes only once.
  if (req.headers['transfer-encoding'] !== undefined)
    await new Promise<void>((resolve) => process.nextTick(resolve));
  if (req.destroyed) return 'gone';
  // Adapters of AWS Lambda make requests that are complete, and whose body comes when it is read.
  if (declared === 0 && req.complete && req.readableLength === 0) return { bytes: NO_BODY, isRaw: true };
  return await new Promise((resolve) => {
    const chunks: Buffer[] = [];
    let bytes = 0;
    const end = (result: FoundBody | 'gone' | Problem) => {
      clearTimeout(timer);
      req.off('readable', onReadable).off('end', onEnd).off('close', onClose);
      resolve(result);
    };
    const onReadable = () => {
      // A read beyond the last byte would end the request.
      while (req.readableLength > 0) {
        const chunk = req.read() as Buffer;
        chunks.push(chunk);
        bytes += chunk.length;
      }
      if (bytes > bodyBytes) return end(tooLargeBody(bodyBytes));
      if (!req.complete) return;
      const body = Buffer.concat(chunks);
      // Node emits `end` in the next tick, unless the request has data again by then.
      if (body.length > 0) req.unshift(body);
      end({ bytes: body, isRaw: true });
    };
    const onEnd = () => end({ bytes: NO_BODY, isRaw: true });
    const onClose = () => end('gone');
    const timer = setTimeout(() => end(lateBody(bodyTimeoutMs)), bodyTimeoutMs);
    req.on('readable', onReadable).on('end', onEnd).on('close', onClose).on('error', onClose);
  });
}
