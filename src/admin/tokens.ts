import { hash, timingSafeEqual } from 'node:crypto';
import type { RequestHandler, Response } from 'express';
import type { Permission } from '../console/contract.ts';
import type { AdminProblemCode } from '../lib/problem-table.ts';
import type { AdminOptions } from './admin-options.ts';
import { refuse } from './problems.ts';
import type { Tries } from './tries.ts';

/** Who logs in with a token, and what the token permits. */
export interface Login {
  readonly name: string;
  readonly may: readonly Permission[];
}

/** Constant-time comparison. The digests have one length, which `timingSafeEqual` requires. */
function sameText(a: string, b: string): boolean {
  return timingSafeEqual(Buffer.from(hash('sha256', a)), Buffer.from(hash('sha256', b)));
}

/** Finds the token that matches. Compares with all tokens, so that the time does not reveal which one did. */
export function loginWith(
  presented: string,
  { token, tokens }: Pick<AdminOptions, 'token' | 'tokens'>,
): Login | undefined {
  let found: Login | undefined;
  if (token !== undefined && sameText(presented, token)) found = { name: 'admin', may: ['read', 'resolve'] };
  for (const { name, token: own, may } of tokens)
    if (sameText(presented, own)) found = { name, may: ['read', ...new Set(may)] };
  return found;
}

/**
 * For programs, which send a bearer token. Without `admin.token` in the configuration, every request is accepted; the configuration
 * then allows the port on loopback addresses only.
 *
 * @param accepted the tokens that the path accepts
 * @param onWrong called with the address of a client that sent a wrong token, unless it repeats it
 */
export function requireToken(
  accepted: Pick<AdminOptions, 'token' | 'tokens'>,
  tries: Tries,
  onWrong: (address: string) => void,
): RequestHandler {
  return (req, res, next) => {
    if (accepted.token === undefined) return next();
    const [, presented] = /^Bearer +(\S.*)$/i.exec(req.headers.authorization ?? '') ?? [];
    if (presented === undefined)
      return unauthorized(res, 'token_required', 'Send a token of this gateway as the bearer token.');
    const address = req.socket.remoteAddress ?? 'unknown';
    const retryAfterMs = tries.waitMs(address);
    if (retryAfterMs > 0)
      return refuse(res, 'too_many_tries', 'Too many wrong tokens were tried. Wait.', { retryAfterMs });
    const login = loginWith(presented, accepted);
    if (login) {
      tries.right(address);
      res.locals.login = login;
      return next();
    }
    if (tries.wrong(address, presented)) onWrong(address);
    unauthorized(
      res,
      'wrong_token',
      'This path does not accept the bearer token. It must be admin.token, or for /metrics one of admin.tokens.',
    );
  };
}

function unauthorized(res: Response, code: AdminProblemCode, detail: string): void {
  res.setHeader('WWW-Authenticate', 'Bearer realm="oncegate admin"');
  refuse(res, code, detail);
}
