import { hash, randomBytes } from 'node:crypto';
import type { Fingerprint, Scope, Token } from '../kernel/brands.ts';

/** In UTF-8 a character has at most three bytes for each of its UTF-16 code units. */
const MOST_BYTES = 3;

/** SHA-256 over texts and a body, each with its length before it, so that no two lists run together. In hex. */
function digest(texts: readonly string[], body?: Buffer): string {
  let most = body ? 4 + body.length : 0;
  for (const text of texts) most += 4 + MOST_BYTES * text.length;
  const bytes = Buffer.allocUnsafe(most);
  let at = 0;
  for (const text of texts) {
    const length = bytes.write(text, at + 4);
    bytes.writeUInt32BE(length, at);
    at += 4 + length;
  }
  if (body) {
    at = bytes.writeUInt32BE(body.length, at);
    at += body.copy(bytes, at);
  }
  return hash('sha256', bytes.subarray(0, at), 'hex');
}

/** The merchant code and never the secret key: a rotated key must still find its old payouts. */
export function scopeOf(merchantCode: string, idempotencyKey: string): Scope {
  return digest([merchantCode, idempotencyKey]) as Scope;
}

/** The headers that say how a body is written. */
export interface BodyForm {
  contentType?: string | undefined;
  contentEncoding?: string | undefined;
}

/**
 * Whether a request is the same request again. It ignores what an honest retry changes: the boundary of a multipart body,
 * and the time stamp in a gzip header.
 *
 * @param target the request target as received, query included
 */
export function fingerprintOf(
  method: string,
  target: string,
  body: Buffer,
  { contentType, contentEncoding }: BodyForm = {},
): Fingerprint {
  const isCompressed = isGzip(contentEncoding, body);
  // In a compressed body a boundary cannot be found.
  const boundary = isCompressed ? undefined : boundaryOf(contentType);
  const digested =
    boundary === undefined
      ? digest([method, target], isCompressed ? withoutTime(body) : body)
      : digest([method, target, ...partsOf(body, boundary)]);
  // A hash that is asked for as a buffer costs four times as much.
  return Buffer.from(digested, 'hex') as Fingerprint;
}

const MULTIPART = /^multipart\/[\w-]+\s*;/i;
const BOUNDARY = /;\s*boundary=(?:"([^"]{1,200})"|([^\s;"]{1,200}))/i;

function boundaryOf(contentType: string | undefined): string | undefined {
  if (contentType === undefined || !MULTIPART.test(contentType)) return undefined;
  const [, quoted, bare] = BOUNDARY.exec(contentType) ?? [];
  return quoted ?? bare;
}

/** The body between its boundaries, in latin1. Each part is digested with its length, so no two lists run together. */
const partsOf = (body: Buffer, boundary: string): string[] => [
  'multipart',
  ...body.toString('latin1').split(`--${boundary}`),
];

const isGzip = (contentEncoding: string | undefined, body: Buffer): boolean =>
  /gzip/i.test(contentEncoding ?? '') && body[0] === 0x1f && body[1] === 0x8b && body.length >= 10;

/** RFC 1952 §2.3: the modification time has the bytes 4 to 7. */
function withoutTime(body: Buffer): Buffer {
  const copy = Buffer.from(body);
  copy.fill(0, 4, 8);
  return copy;
}

const TOKEN_BYTES = 16;
/** Random bytes are cheaper by the thousand. */
const POOLED_TOKENS = 256;
let pool = Buffer.alloc(0);

export function newToken(): Token {
  if (pool.length === 0) pool = randomBytes(TOKEN_BYTES * POOLED_TOKENS);
  const token = Buffer.from(pool.subarray(0, TOKEN_BYTES));
  pool = pool.subarray(TOKEN_BYTES);
  return token as Token;
}
