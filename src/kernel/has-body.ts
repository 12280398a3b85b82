import type { IncomingMessage } from 'node:http';

/** Does a body follow the head? */
export function hasBody(req: IncomingMessage): boolean {
  const { 'content-length': length = '0', 'transfer-encoding': coding } = req.headers;
  return coding !== undefined || Number(length) > 0;
}
