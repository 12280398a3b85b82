import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Middleware, RequestContext } from '../kernel/context.ts';
import { valuesOf } from '../kernel/fields.ts';
import { type Problem, problem } from '../kernel/problem.ts';
import { ambiguityOf } from '../operations/target.ts';

export interface AdmitOptions {
  /** Begins a request's context; see Access.begin. */
  begin(req: IncomingMessage, res: ServerResponse): RequestContext;
  /** Requests that are being answered, this one included. */
  open(): number;
  maxInFlight: number;
  lifecycle: Lifecycle;
}

/** Begins a request's context. Refuses if the gateway is closing or has no room. */
export function admit({ begin, open, maxInFlight, lifecycle }: AdmitOptions): Middleware {
  const again = { retryAfterS: 1 };
  return (req, res, next) => {
    begin(req, res);
    // The merchant's client shall not send its next request on a connection that is about to end.
    if (lifecycle.draining) res.shouldKeepAlive = false;
    if (lifecycle.closing) next(problem('shutting_down', 'The request was not sent; ask again.', again));
    else if (open() > maxInFlight) next(problem('overloaded', 'The request was not sent; ask again.', again));
    else next();
  };
}

/**
 * Where a process is in its life: serving; draining (still serves, but says that it is about to end); closing (what
 * runs may end, nothing new begins).
 */
export class Lifecycle {
  #state: 'serving' | 'draining' | 'closing' = 'serving';

  get draining(): boolean {
    return this.#state !== 'serving';
  }

  get closing(): boolean {
    return this.#state === 'closing';
  }

  drain(): void {
    if (this.#state === 'serving') this.#state = 'draining';
  }

  close(): void {
    this.#state = 'closing';
  }
}

/** Header lines of a request. Node shows the server one more than these, so that a request with hidden ones is refused. */
export const MAX_HEADER_LINES = 200;

/** A host name or address and perhaps a port (RFC 9110 §7.2), without characters that no host name has. */
const HOST = /^(?:[a-z0-9._~-]+|\[[0-9a-f:.]+\])(?::\d{0,5})?$/i;

/** Why a head is malformed, or means different things to different readers, or undefined. */
export function refusalOfHead(req: IncomingMessage): Problem | undefined {
  return refusalOfFraming(req) ?? refusalOfHost(req) ?? refusalOfTarget(req);
}

export const checkHead: Middleware = (req, res, next) => {
  const refusal = refusalOfHead(req);
  // Where the message is malformed, two readers may disagree on where the next one begins.
  if (refusal?.code === 'invalid_request') res.shouldKeepAlive = false;
  next(refusal);
};

function refusalOfFraming({ httpVersion, rawHeaders }: IncomingMessage): Problem | undefined {
  // One of the lines that Node drops may be the framing of a body, which then arrives as the next request.
  if (rawHeaders.length > 2 * MAX_HEADER_LINES)
    return problem('invalid_request', 'The request has too many header fields.', { status: 431 });
  // Node's parser takes 0.9 and 2.0 as well, and chunks with either.
  if (httpVersion !== '1.1' && httpVersion !== '1.0')
    return problem('invalid_request', 'Only HTTP/1.1 and HTTP/1.0 are supported.', { status: 505 });
  const codings = valuesOf(rawHeaders, 'transfer-encoding');
  // HTTP/1.0 knows no chunks: another reader may take them for the next request.
  if (codings.length > 0 && httpVersion === '1.0')
    return problem('invalid_request', 'HTTP/1.0 has no transfer codings.');
  // Node reads the chunks of `gzip, chunked` and leaves the rest to us; the gateway supports chunks only.
  if (codings.some((coding) => coding.trim().toLowerCase() !== 'chunked'))
    return problem('invalid_request', 'The body has a transfer coding other than chunked.');
  return undefined;
}

function refusalOfHost({ httpVersion, rawHeaders }: IncomingMessage): Problem | undefined {
  const [host, ...others] = valuesOf(rawHeaders, 'host');
  // Node takes two Host lines; the backend may read the other one.
  if (others.length > 0) return problem('invalid_request', 'The header host was sent twice.');
  if (host === undefined)
    return httpVersion === '1.0' ? undefined : problem('invalid_request', 'The header host is missing.');
  return HOST.test(host) ? undefined : problem('invalid_request', 'The header host names no valid host.');
}

function refusalOfTarget({ url = '' }: IncomingMessage): Problem | undefined {
  const ambiguity = ambiguityOf(url);
  return ambiguity ? problem('invalid_target', `The request target has ${ambiguity}.`) : undefined;
}
