import type { IncomingMessage } from 'node:http';
import { type BodyResult, readBody } from '../../src/requests/body.ts';

/** `readBody` as a promise. A body that is too large is restored at once, as the gateway does, if `restores` is set. */
export const bodyOf = (
  req: IncomingMessage,
  maxBytes: number,
  timeoutMs: number,
  { restores = false, mayHold = (_bytes: number) => true } = {},
): Promise<BodyResult> =>
  new Promise((resolve) =>
    readBody(req, maxBytes, timeoutMs, mayHold, (result) => {
      if (restores && result.kind === 'too_large') req.unshift(result.read);
      resolve(result);
    }),
  );
