import type { Fingerprint } from '../lib/brands.ts';
import { digest } from '../lib/digest.ts';

/** The headers that say how a body is encoded. */
export interface BodyForm {
  contentType?: string | undefined;
  contentEncoding?: string | undefined;
}

/**
 * Two requests with the same fingerprint are the same request. The fingerprint ignores what an honest retry changes: the
 * boundary of a multipart body, and the time stamp in a gzip header.
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
  // Converting from hex is faster: `hash` takes four times as long to return a buffer.
  return Buffer.from(digested, 'hex') as Fingerprint;
}

const MULTIPART = /^multipart\/[\w-]+\s*;/i;
const BOUNDARY = /;\s*boundary=(?:"([^"]{1,200})"|([^\s;"]{1,200}))/i;

function boundaryOf(contentType: string | undefined): string | undefined {
  if (contentType === undefined || !MULTIPART.test(contentType)) return undefined;
  const [, quoted, bare] = BOUNDARY.exec(contentType) ?? [];
  return quoted ?? bare;
}

/** The parts of a body between its boundaries, in latin1. `digest` prefixes each with its length. */
const partsOf = (body: Buffer, boundary: string): string[] => [
  'multipart',
  ...body.toString('latin1').split(`--${boundary}`),
];

const isGzip = (contentEncoding: string | undefined, body: Buffer): boolean =>
  /gzip/i.test(contentEncoding ?? '') && body[0] === 0x1f && body[1] === 0x8b && body.length >= 10;

/** The modification time is in bytes 4 to 7 (RFC 1952 §2.3). */
function withoutTime(body: Buffer): Buffer {
  const copy = Buffer.from(body);
  copy.fill(0, 4, 8);
  return copy;
}
