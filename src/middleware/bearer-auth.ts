import type { IncomingMessage, ServerResponse } from 'node:http';
import * as z from 'zod';
import { parsed } from '../config/explain.ts';
import { authOptions } from '../keys/auth-options.ts';
import { Authenticator } from '../keys/authenticate.ts';
import { refusalOfScopes } from '../keys/authorise.ts';
import { FileKeySource } from '../keys/file-key-source.ts';
import { systemClock } from '../lib/clock.ts';
import { findContext, type Merchant } from '../lib/context.ts';
import { problemDocument, sendProblem } from '../lib/problem.ts';
import { Events } from '../telemetry/emit.ts';
import { createLogger, type Logger } from '../telemetry/logger.ts';
import { newRequestId } from '../telemetry/request-log.ts';

/** Options of {@link bearerAuth}. */
export interface BearerAuthOptions {
  /** The key file, which is read again when it changes. See `oncegate keys --help`. Default `./keys.yaml`. */
  path?: string;
  /** The HMAC key for the secret keys in the file, at least 16 characters. Take it from the environment. Default: none. */
  pepper?: string | undefined;
  /** The realm in `WWW-Authenticate`. Default `oncegate`. */
  realm?: string;
  /** Secret keys without this scope get 403. Default: every valid key may call. */
  scope?: string;
  /** A pino logger. Default: one that writes warnings and errors to standard output. */
  logger?: Logger;
}

const { pepper, realm } = authOptions.shape;

/** The options of `bearerAuth` that are plain values. */
export const bearerOptions = z.strictObject({
  path: z.string().min(1).default('./keys.yaml'),
  ...{ pepper, realm },
  scope: z.string().min(1).optional(),
});

/** The middleware that {@link bearerAuth} resolves to. */
export interface BearerAuthMiddleware {
  /** Express calls it for each request. */
  (req: IncomingMessage, res: ServerResponse, next: (error?: unknown) => void): void;
  /** Stops watching the key file. */
  close(): void;
}

/**
 * Express middleware that finds the merchant of a bearer secret key, as `req.merchant`, or answers 401. Place it before
 * `idempotency` and before body parsers.
 *
 * @param options default: all defaults
 * @returns the middleware, as soon as the key file is read
 * @throws {TypeError} if an option is invalid
 * @throws {Error} with a message for the operator if the key file is refused
 */
export async function bearerAuth(options: BearerAuthOptions = {}): Promise<BearerAuthMiddleware> {
  const { logger = createLogger('warn'), ...values } = options;
  const { path, pepper, realm, scope } = parsed(bearerOptions, values, 'bearerAuth');
  const { emit } = new Events(logger);
  const keys = await FileKeySource.open({ path, pepper, emit });
  const authenticator = new Authenticator(keys, { realm }, systemClock);
  const handler = (
    req: IncomingMessage & { merchant?: Merchant },
    res: ServerResponse,
    next: (error?: unknown) => void,
  ): void => {
    const authentication = authenticator.authenticate(req.rawHeaders);
    const refusal =
      authentication.kind === 'refused'
        ? authentication.problem
        : refusalOfScopes(authentication.merchant, scope === undefined ? [] : [scope], realm);
    if (authentication.kind === 'merchant') req.merchant = authentication.merchant;
    if (refusal) sendProblem(res, problemDocument(refusal, findContext(req)?.requestId ?? newRequestId(req)));
    else next();
  };
  return Object.assign(handler, { close: () => keys.close() });
}
