import type { IncomingMessage } from 'node:http';

/** The parts of a request's head that matching reads: `incoming('POST', '/v1/index.php', { 'Content-Type': 'text/plain' })`. */
export function incoming(
  method: string,
  url: string,
  fields: Record<string, string | string[]> = {},
): IncomingMessage {
  const rawHeaders = Object.entries(fields).flatMap(([name, values]) =>
    [values].flat().flatMap((value) => [name, value]),
  );
  const headers = Object.fromEntries(
    Object.entries(fields).map(([name, values]) => [name.toLowerCase(), [values].flat().join(', ')]),
  );
  return { method, url, headers, rawHeaders } as IncomingMessage;
}
