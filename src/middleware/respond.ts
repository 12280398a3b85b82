import { type ServerResponse, validateHeaderName, validateHeaderValue } from 'node:http';
import type { BackendResponse } from '../lib/exchange.ts';
import { answerFields, hasField } from '../requests/fields.ts';

/** The answer that a transaction commits. */
export interface TransactionAnswer {
  /** 200 to 599. Whatever it is, it is stored, and every retry gets it. */
  status: number;
  /** Header fields in addition to those that are set on the response. Content-Length and Content-Encoding are dropped. */
  headers?: Record<string, string | string[]>;
  /** The body, sent as JSON. Default: no body. */
  json?: unknown;
}

/**
 * Sends a response by `setHeader` and `end`, because middleware such as compression may have replaced these methods, and
 * older versions of it misread the header fields of `writeHead`.
 */
export function writeResponse(
  res: ServerResponse,
  { status, headers, body }: BackendResponse,
  requestId: string,
  originalRequestId?: string,
): void {
  if (res.destroyed || res.headersSent) return;
  setHead(res, status, answerFields(headers, requestId, originalRequestId));
  res.end(body);
}

/** @param fields names and values in turn */
export function setHead(res: ServerResponse, status: number, fields: readonly string[]): void {
  res.statusCode = status;
  const set = new Set<string>();
  for (let i = 0; i + 1 < fields.length; i += 2) {
    const [name, value] = [fields[i] as string, fields[i + 1] as string];
    // The first one replaces what another middleware has set.
    if (set.has(name.toLowerCase())) res.appendHeader(name, value);
    else res.setHeader(name, value);
    set.add(name.toLowerCase());
  }
}

/**
 * What is sent of the answer of a transaction: `fields` are names and values in turn.
 *
 * @throws {TypeError} it cannot be sent
 */
export function partsOf(answer: TransactionAnswer) {
  const { status, headers = {}, json } = answer ?? {};
  if (!Number.isInteger(status) || status < 200 || status > 599)
    throw new TypeError('idempotency: the answer of a transaction needs a status from 200 to 599');
  const fields = Object.entries(headers).flatMap(([name, values]) =>
    [values].flat().flatMap((value) => [name, value]),
  );
  for (let i = 0; i < fields.length; i += 2) {
    validateHeaderName(fields[i] as string);
    validateHeaderValue(fields[i] as string, fields[i + 1] as string);
  }
  const hasBody = json !== undefined && status !== 204 && status !== 304;
  if (hasBody && !hasField(fields, 'content-type'))
    fields.push('Content-Type', 'application/json; charset=utf-8');
  const body = Buffer.from(hasBody ? JSON.stringify(json) : '');
  return { status, fields, body };
}
