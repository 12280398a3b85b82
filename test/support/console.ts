import type http from 'node:http';
import { onTestFinished } from 'vitest';
import type { LoginAnswer } from '../../src/console/contract.ts';
import { openAdminPort } from '../../src/gateway/admin-port.ts';
import { type Clock, systemClock } from '../../src/lib/clock.ts';
import { Events } from '../../src/telemetry/emit.ts';
import { send, type TestAnswer } from './client.ts';
import { parsedConfig } from './config.ts';
import { keptLog } from './log-lines.ts';
import type { Stack } from './stack.ts';

export const ADMIN_TOKEN = 'a token of the administrators';
export const SUPPORT_TOKEN = 'a token of the support';
export const READER_TOKEN = 'a token that only reads';
export const METRICS_TOKEN = 'a token of a Prometheus';

/** Section `admin` with a token of each kind. `host` and `port` are those of tests. */
export const consoleOptions = {
  ...{ host: '127.0.0.1', port: 0, token: ADMIN_TOKEN },
  tokens: [
    { name: 'support', token: SUPPORT_TOKEN, may: ['bodies' as const] },
    { name: 'reader', token: READER_TOKEN },
    { name: 'prometheus', token: METRICS_TOKEN, only: 'metrics' as const },
  ],
};

export interface ConsoleRequest {
  method?: string;
  json?: unknown;
  /** The body in place of `json`. */
  body?: string | Buffer;
  /** Overrides the headers that a browser would send. An undefined value leaves one out. */
  headers?: http.OutgoingHttpHeaders;
}

/** Does what a browser with the console's page does: it keeps the cookie and the session's secret, and sends Origin. */
export class TestBrowser {
  readonly url: string;
  readonly origin: string;
  /** `NAME=VALUE` */
  cookie: string | undefined;
  secret = '';
  /** Every answer so far. */
  readonly answers: TestAnswer[] = [];

  constructor(url: string) {
    this.url = url;
    this.origin = new URL(url).origin;
  }

  async request(path: string, { method, json, body, headers }: ConsoleRequest = {}): Promise<TestAnswer> {
    const sent = body ?? (json === undefined ? undefined : JSON.stringify(json));
    const verb = method ?? (sent === undefined ? 'GET' : 'POST');
    const answer = await send(this.url, {
      path: path.startsWith('/') ? path : `/console/${path}`,
      method: verb,
      headers: withoutUndefined({
        'Sec-Fetch-Site': 'same-origin',
        ...(verb === 'GET' || verb === 'HEAD' ? {} : { Origin: this.origin }),
        'X-Console-Secret': this.secret,
        'Content-Type': sent === undefined ? undefined : 'application/json',
        Cookie: this.cookie,
        ...headers,
      }),
      ...(sent === undefined ? {} : { body: sent }),
    });
    this.answers.push(answer);
    const [set] = answer.headers['set-cookie'] ?? [];
    if (set !== undefined) this.cookie = set.includes('Max-Age=0') ? undefined : set.split(';')[0];
    return answer;
  }

  async login(token = ADMIN_TOKEN): Promise<TestAnswer> {
    const answer = await this.request('session', { json: { token } });
    if (answer.status === 200) this.secret = answer.json<LoginAnswer>().secret;
    return answer;
  }

  /** @throws if the answer is not 200 */
  async ask<T>(path: string, options?: ConsoleRequest): Promise<T> {
    const answer = await this.request(path, options);
    if (answer.status !== 200) throw new Error(`${path}: ${answer.status} ${answer.body}`);
    return answer.json<T>();
  }
}

const withoutUndefined = (headers: http.OutgoingHttpHeaders): http.OutgoingHttpHeaders =>
  Object.fromEntries(Object.entries(headers).filter(([, value]) => value !== undefined));

/** A browser in which somebody has logged in. */
export async function loggedIn(url: string, token = ADMIN_TOKEN): Promise<TestBrowser> {
  const browser = new TestBrowser(url);
  const { status, body } = await browser.login(token);
  if (status !== 200) throw new Error(`the login was refused: ${body}`);
  return browser;
}

/** `401 not_logged_in` */
export function codeOf(answer: TestAnswer): string {
  const { status, headers } = answer;
  if (status < 400) return String(status);
  if (headers['content-type'] !== 'application/problem+json')
    return `${status}, which is no problem document`;
  return `${status} ${answer.json<{ code: string }>().code}`;
}

/** Another admin port of the stack's gateway, with a clock of its own. Closed after the test. */
export async function adminPortOf(
  { gateway, config }: Stack,
  clock: Clock = systemClock,
  admin: object = consoleOptions,
) {
  const { log, logger } = keptLog();
  const { metrics, desk, readiness } = gateway;
  const { port, sessions, close } = await openAdminPort(
    parsedConfig({ ...config, admin: { ...consoleOptions, ...admin } }),
    { ...{ metrics, desk, readiness }, emit: new Events(logger).emit },
    clock,
  );
  onTestFinished(close);
  return { url: `http://127.0.0.1:${port}`, port, sessions, log };
}
