import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Middleware } from '../lib/context.ts';
import { type Problem, problem } from '../lib/problem.ts';
import { valuesOf } from '../requests/fields.ts';
import { ambiguityOf } from '../requests/target.ts';
import type { RequestLog } from '../telemetry/request-log.ts';

/** Begins a request's context. Refuses the request if the gateway shuts down or too many requests are in flight. */
export function admit(requestLog: RequestLog, maxInFlight: number, lifecycle: Lifecycle): Middleware {
  return (req, res, next) => {
    requestLog.begin(req, res);
    // `Connection: close` keeps the client from sending another request on a connection that will be closed.
    if (lifecycle.draining) res.shouldKeepAlive = false;
    if (lifecycle.closing) next(problem('shutting_down', 'The request was not sent; retry.'));
    else if (requestLog.open.count > maxInFlight)
      next(problem('overloaded', 'The request was not sent; retry.'));
    else next();
  };
}

/**
 * The phases of a process. Serving: it accepts requests. Draining: it still accepts requests, but /readyz fails and
 * responses close their connections. Closing: running requests may finish, and new ones are refused.
 */
export class Lifecycle {
  draining = false;
  closing = false;

  drain(): void {
    this.draining = true;
  }

  close(): void {
    this.draining = true;
    this.closing = true;
  }
}

/** The most header lines that a request may have. Node's own limit is one higher, and Node drops the lines beyond it. */
export const MAX_HEADER_LINES = 200;

/** A host name or address and perhaps a port (RFC 9110 §7.2), without characters that no host name has. */
const HOST = /^(?:[a-z0-9._~-]+|\[[0-9a-f:.]+\])(?::\d{0,5})?$/i;

/** Refuses a head that is malformed, or that two parsers could read differently. */
export const checkHead: Middleware = (req, res, next) => next(refusalOfHead(req, res));

/** @param target the one that the backend gets */
export function refusalOfHead(
  req: IncomingMessage,
  res: ServerResponse,
  target = req.url ?? '',
): Problem | undefined {
  const malformed = refusalOfFraming(req) ?? refusalOfHost(req);
  // After a malformed request, two parsers may disagree on where the next one begins (request smuggling).
  if (malformed) res.shouldKeepAlive = false;
  const refusal = refusalOfMethod(req) ?? malformed;
  if (refusal) return refusal;
  const ambiguity = ambiguityOf(target);
  return ambiguity ? problem('invalid_target', `The request target has ${ambiguity}.`) : undefined;
}

const ALLOWED = { Allow: 'GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS' };

/** A backend answers TRACE with the request as it got it, the gateway's own credential under `auth.forward: replace` included. */
function refusalOfMethod({ method }: IncomingMessage): Problem | undefined {
  if (method !== 'TRACE') return undefined;
  return problem('method_not_allowed', 'The method TRACE is not allowed.', { headers: ALLOWED });
}

function refusalOfFraming({ httpVersion, rawHeaders }: IncomingMessage): Problem | undefined {
  // A line that Node has dropped may frame a body, which would then be read as the next request.
  if (rawHeaders.length > 2 * MAX_HEADER_LINES)
    return problem('invalid_request', 'The request has too many header fields.', { status: 431 });
  // Node's parser accepts HTTP/0.9 and HTTP/2.0 too, and chunked bodies with both.
  if (httpVersion !== '1.1' && httpVersion !== '1.0')
    return problem('invalid_request', 'Only HTTP/1.1 and HTTP/1.0 are supported.', { status: 505 });
  const codings = valuesOf(rawHeaders, 'transfer-encoding');
  // HTTP/1.0 has no chunked bodies: another parser may read the chunks as the next request.
  if (codings.length > 0 && httpVersion === '1.0')
    return problem('invalid_request', 'Transfer-Encoding is not allowed in HTTP/1.0.');
  // Of `gzip, chunked`, Node decodes only the chunks, and the gateway decodes nothing else.
  if (codings.some((coding) => coding.trim().toLowerCase() !== 'chunked'))
    return problem('invalid_request', 'The body has a transfer coding other than chunked.');
  return undefined;
}

function refusalOfHost({ httpVersion, rawHeaders }: IncomingMessage): Problem | undefined {
  const [host, ...others] = valuesOf(rawHeaders, 'host');
  // Node accepts two Host lines and uses the first one. The backend may use the other one.
  if (others.length > 0) return problem('invalid_request', 'The header host was sent twice.');
  if (host === undefined)
    return httpVersion === '1.0' ? undefined : problem('invalid_request', 'The header host is missing.');
  return HOST.test(host)
    ? undefined
    : problem('invalid_request', 'The header host is not a valid host name or address.');
}
