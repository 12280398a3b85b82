import type { ServerResponse } from 'node:http';
import type { BackendResponse } from '../lib/exchange.ts';
import { answerFields } from '../requests/fields.ts';

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
