import type { IncomingMessage } from 'node:http';
import { isIP } from 'node:net';
import type { RequestHandler } from 'express';
import { type AdminOptions, isLoopback } from '../admin-options.ts';
import { refuse } from '../problems.ts';
import type { Credentials } from './sessions.ts';

/**
 * Refuses requests for names that are not this port's (421). A page of another site can have its own name resolved to this
 * address (DNS rebinding), and would then be of the same origin for the browser. An address in the Host header cannot be such a
 * name, and `localhost` never leaves the machine.
 *
 * If the port is on a loopback address, such a page reaches it through an operator's browser, so only known names are accepted.
 * Otherwise any name is, unless `hosts` lists some: that page has neither a cookie nor a token, and gains nothing that it could
 * not have without a browser.
 */
export function checkHost({ host, hosts }: Pick<AdminOptions, 'host' | 'hosts'>): RequestHandler {
  const names = new Set([host, ...hosts].map((name) => name.toLowerCase()));
  const isStrict = hosts.length > 0 || isLoopback(host);
  return (req, res, next) => {
    const name = nameIn(req.headers.host ?? '');
    if (name !== undefined && (!isStrict || isAddress(name) || isLocal(name) || names.has(name)))
      return next();
    refuse(res, 'wrong_host', 'Use an address or localhost, or list the name in admin.hosts.');
  };
}

/** The name or address in a Host header, in lower case and without its port. */
const nameIn = (host: string): string | undefined =>
  /^(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::\d{1,5})?$/.exec(host.toLowerCase())?.[1];

const isAddress = (name: string): boolean => isIP(name.replace(/^\[(.*)\]$/, '$1')) !== 0;
const isLocal = (name: string): boolean => name === 'localhost' || name.endsWith('.localhost');

/**
 * Refuses requests that another origin made (403). SameSite does not: for it, all ports of a host are one site, so a page of
 * another program on localhost could send the cookie. A browser says where a request comes from in Sec-Fetch-Site, but on plain
 * HTTP only for localhost, and in Origin for every request that can change something.
 */
export const checkOrigin: RequestHandler = (req, res, next) => {
  const site = req.headers['sec-fetch-site'];
  const isSafe = req.method === 'GET' || req.method === 'HEAD';
  // `none`: the person typed the address.
  const isForeign = site !== undefined && site !== 'same-origin' && !(isSafe && site === 'none');
  if (isForeign || !(isSafe || isOwnOrigin(req)))
    refuse(
      res,
      'foreign_origin',
      'Only the page itself may send this request. A proxy in front of this port must pass the Host header on.',
    );
  else next();
};

/** Only the page sends a session's secret. Programs send a bearer token, and so may a proxy in front of the page. */
export const isFromPage = ({ headers }: IncomingMessage): boolean =>
  headers['x-console-secret'] !== undefined;

/** Whether Origin is the origin of the page: any scheme, because a proxy may speak TLS, and the host of the Host header. */
function isOwnOrigin({ headers: { origin = '', host } }: IncomingMessage): boolean {
  const [, originHost] = /^https?:\/\/([^/]+)$/i.exec(origin) ?? [];
  return originHost !== undefined && originHost.toLowerCase() === host?.toLowerCase();
}

/** Whether the browser reached the page by https: directly it cannot, but a proxy may speak TLS. The browser itself says it. */
export const isSecure = ({ headers: { origin = '' } }: IncomingMessage): boolean => /^https:/i.test(origin);

/**
 * The cookie's name. Browsers send a cookie to all ports of a host, so two consoles on one host, such as two tunnels to
 * different gateways, would end each other's sessions if their cookies had the same name.
 */
export function cookieName({ headers: { host = '' } }: IncomingMessage): string {
  const [, port] = /:(\d{1,5})$/.exec(host) ?? [];
  return port === undefined ? 'oncegate_console' : `oncegate_console_${port}`;
}

/** What proves a session: the value of its cookie, and the secret that only the page knows. Empty texts if there is none. */
export function credentialsIn(req: IncomingMessage): Credentials {
  const name = `${cookieName(req)}=`;
  const found = req.headers.cookie?.split(';').find((pair) => pair.trim().startsWith(name));
  const { 'x-console-secret': secret } = req.headers;
  return {
    cookie: found?.trim().slice(name.length) ?? '',
    secret: typeof secret === 'string' ? secret : '',
  };
}
