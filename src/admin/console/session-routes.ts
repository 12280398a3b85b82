import { type Request, type RequestHandler, Router } from 'express';
import * as z from 'zod';
import type { LoginAnswer } from '../../console/contract.ts';
import { isLoopback } from '../admin-options.ts';
import { allowOnly, refuse } from '../problems.ts';
import type { AdminTools } from '../source.ts';
import { loginWith } from '../tokens.ts';
import type { Tries } from '../tries.ts';
import { cookieName, credentialsIn, isSecure } from './origin.ts';
import { jsonBody, requireSession, sessionOf } from './request-checks.ts';
import type { OpenSession, Sessions } from './sessions.ts';

const MAX_LOGIN_BYTES = 4096;

const loginBody = z.strictObject({ token: z.string().max(MAX_LOGIN_BYTES) });

/** One cookie for each of the page's paths, so that other paths, which other programs may have on this host, do not get it. */
const cookieFields = (req: Request, value: string, more: string): string[] =>
  ['/console', '/records'].map(
    (path) => `${cookieName(req)}=${value}; Path=${path}; HttpOnly; SameSite=Strict${more}`,
  );

/**
 * `/console/session`: POST logs in with a token of the admin port, GET describes the session, DELETE logs out.
 */
export function sessionRoutes(
  sessions: Sessions,
  { options, emit, tries }: Pick<AdminTools, 'options' | 'emit'> & { tries: Tries },
): Router {
  const logIn: RequestHandler = (req, res) => {
    const { data, success } = loginBody.safeParse(req.body);
    if (!success) return refuse(res, 'invalid', 'The body must be {"token": "..."}.');
    const address = req.socket.remoteAddress ?? 'unknown';
    const retryAfterMs = tries.waitMs(address);
    if (retryAfterMs > 0)
      return refuse(res, 'too_many_tries', 'Too many wrong tokens were tried. Wait.', { retryAfterMs });
    // A code of the sandbox is for this machine only, whatever its port listens on.
    const login =
      loginWith(data.token, options) ?? (isLoopback(address) ? sessions.redeem(data.token) : undefined);
    if (!login) {
      if (tries.wrong(address, data.token)) emit('wrong_login', { client: address });
      return refuse(res, 'wrong_token', 'No token of this gateway is like this one.');
    }
    tries.right(address);
    sessions.end(credentialsIn(req));
    const { cookie, secret, session } = sessions.begin(login);
    emit('logged_in', { by: login.name, client: address });
    const secure = isSecure(req) ? '; Secure' : '';
    res.set('Set-Cookie', cookieFields(req, cookie, secure));
    const answer: LoginAnswer = { ...sessions.view(session), secret };
    res.json(answer);
  };

  const show: RequestHandler = (_req, res) => {
    res.json(sessions.view(sessionOf(res) as OpenSession));
  };

  // Without a session it succeeds too, so that a page whose session has ended can remove its cookie.
  const logOut: RequestHandler = (req, res) => {
    sessions.end(credentialsIn(req));
    res.set('Set-Cookie', cookieFields(req, '', '; Max-Age=0'));
    res.status(204).end();
  };

  const routes = Router();
  routes
    .route('/')
    .post(jsonBody(MAX_LOGIN_BYTES), logIn)
    .get(requireSession(sessions), show)
    .delete(logOut)
    .all(allowOnly('GET, HEAD, POST, DELETE'));
  return routes;
}
