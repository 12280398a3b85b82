import express, { type RequestHandler, type Response } from 'express';
import type { Permission } from '../../console/contract.ts';
import { refuse } from '../problems.ts';
import type { Login } from '../tokens.ts';
import { credentialsIn } from './origin.ts';
import type { OpenSession, Sessions } from './sessions.ts';

/** The session of a request that passed {@link requireSession}. A program's request passed `requireToken`, and has none. */
export const sessionOf = (res: Response): OpenSession | undefined => res.locals.session;

/** Whose token the request has, as a bearer or by its session. */
export const loginOf = (res: Response): Login => res.locals.login;

export const noStore: RequestHandler = (_req, res, next) => {
  res.set('Cache-Control', 'no-store');
  next();
};

/** Refuses a request without a session with 401. */
export function requireSession(sessions: Sessions): RequestHandler {
  return (req, res, next) => {
    const session = sessions.find(credentialsIn(req), req.get('X-Console-Background') !== '1');
    if (!session)
      return refuse(
        res,
        'not_logged_in',
        'Log in. A session ends when it is not used, and with the gateway.',
      );
    res.locals.session = session;
    res.locals.login = session;
    next();
  };
}

/** 403 unless the token permits it. */
export const requirePermission =
  (permission: Permission): RequestHandler =>
  (_req, res, next) => {
    const { may, name } = loginOf(res);
    if (may.includes(permission)) next();
    else refuse(res, 'not_permitted', `The token ${name} does not permit ${permission}.`);
  };

/** Parses the JSON body of a request, and refuses any other. @param of see {@link refuse} */
export function jsonBody(maxBytes: number, of: 'admin' | 'records' = 'admin'): RequestHandler {
  const parse = express.json({ limit: maxBytes, inflate: false });
  const tooLarge = (res: Response) => refuse(res, 'too_large', `The limit is ${maxBytes} bytes.`, { of });
  return (req, res, next) => {
    // `express.json` would read a too large body completely before it refuses it.
    if (Number(req.headers['content-length'] ?? 0) > maxBytes) return tooLarge(res);
    if (!req.is('application/json'))
      return refuse(res, 'not_json', 'Send Content-Type: application/json, and a body.');
    parse(req, res, (error?: { type?: string }) => {
      if (error?.type === 'entity.too.large') tooLarge(res);
      else if (error?.type) refuse(res, 'invalid', 'The body cannot be read as JSON.', { of });
      else next(error);
    });
  };
}
