import type { IncomingMessage } from 'node:http';
import { type BodyResult, readBody } from '../../src/operations/body.ts';

/** `readBody` as a promise. */
export const bodyOf = (req: IncomingMessage, maxBytes: number, timeoutMs: number): Promise<BodyResult> =>
  new Promise((resolve) => readBody(req, maxBytes, timeoutMs, resolve));
