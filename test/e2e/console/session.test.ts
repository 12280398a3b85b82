import { networkInterfaces } from 'node:os';
import { describe, expect, it } from 'vitest';
import { IDLE_MS, LASTS_MS } from '../../../src/admin/console/sessions.ts';
import { MAX_OF_ADDRESS } from '../../../src/admin/tries.ts';
import type { Session } from '../../../src/console/contract.ts';
import type { Clock } from '../../../src/lib/clock.ts';
import { send } from '../../support/client.ts';
import {
  ADMIN_TOKEN,
  adminPortOf,
  codeOf,
  consoleOptions,
  loggedIn,
  METRICS_TOKEN,
  READER_TOKEN,
  SUPPORT_TOKEN,
  TestBrowser,
} from '../../support/console.ts';
import { movableClock } from '../../support/movable-clock.ts';
import { stackForFile } from '../../support/stack.ts';

const stack = await stackForFile();

/** An admin port of its own for each test, because tries are counted for the whole port. */
const open = ({ clock, admin }: { clock?: Clock; admin?: object } = {}) => adminPortOf(stack, clock, admin);

describe('a login', () => {
  it('with a token of the configuration begins a session with its name and permissions', async () => {
    const { url, log } = await open();
    const cases: [token: string, name: string, may: string[]][] = [
      [ADMIN_TOKEN, 'admin', ['read', 'resolve']],
      [SUPPORT_TOKEN, 'support', ['read', 'bodies']],
      [READER_TOKEN, 'reader', ['read']],
    ];
    for (const [token, name, may] of cases) {
      const browser = await loggedIn(url, token);
      expect((await browser.request('session')).json()).toMatchObject({ name, may });
    }
    expect(log.filter(({ msg }) => msg === 'somebody logged in to the console').map(({ by }) => by)).toEqual([
      'admin',
      'support',
      'reader',
    ]);
  });

  it('with a token for the metrics alone is refused, and opens no console', async () => {
    const { url } = await open();
    expect(codeOf(await new TestBrowser(url).login(METRICS_TOKEN))).toBe('401 wrong_token');
    const tokens = consoleOptions.tokens.filter(({ name }) => name === 'prometheus');
    const alone = await open({ admin: { token: undefined, tokens } });
    expect(codeOf(await new TestBrowser(alone.url).login(METRICS_TOKEN))).toBe('404 console_off');
  });

  it('by a link of the sandbox succeeds once, only on this machine and from the page itself', async () => {
    const { url, sessions, log } = await open({ admin: { host: '0.0.0.0' } });
    const used: string[] = [];
    const offer = () =>
      sessions.offer({ name: 'sandbox', may: ['read', 'resolve'] }, () => used.push('used'));
    const old = offer();
    const code = offer();
    // Not by a page of another site, nor under a name of its own, nor from another address: the code stays good.
    const { port } = new URL(url);
    const json = { token: code };
    const tries: [expected: string, browser: TestBrowser, headers?: object][] = [
      ['403 foreign_origin', new TestBrowser(url), { Origin: 'http://evil.example' }],
      ['403 foreign_origin', new TestBrowser(url), { 'Sec-Fetch-Site': 'cross-site' }],
    ];
    const outside = Object.values(networkInterfaces())
      .flat()
      .find((address) => address?.family === 'IPv4' && !address.internal)?.address;
    if (outside) tries.push(['401 wrong_token', new TestBrowser(`http://${outside}:${port}`)]);
    for (const [expected, browser, headers = {}] of tries)
      expect(codeOf(await browser.request('session', { json, headers: { ...headers } }))).toBe(expected);
    expect(codeOf(await new TestBrowser(url).login(old))).toBe('401 wrong_token');
    expect(used).toEqual([]);

    const browser = await loggedIn(url, code);
    expect((await browser.request('session')).json()).toMatchObject({ name: 'sandbox' });
    for (const again of [new TestBrowser(url), browser])
      expect(codeOf(await again.login(code))).toBe('401 wrong_token');
    expect(used).toEqual(['used']);
    expect(log.filter(({ by }) => by === 'sandbox')).toHaveLength(1);
    // It is no bearer token.
    const headers = { Authorization: `Bearer ${offer()}` };
    for (const path of ['/records?in_doubt=true', '/metrics'])
      expect((await send(url, { path, headers })).status).toBe(401);
  });

  it('gets a cookie that scripts, other sites and other paths do not', async () => {
    const { url, port } = await open();
    const { headers } = await new TestBrowser(url).login();
    expect(headers['set-cookie']).toEqual(
      ['/console', '/records'].map((path) =>
        expect.stringMatching(
          new RegExp(`^oncegate_console_${port}=[\\w-]{43}; Path=${path}; HttpOnly; SameSite=Strict$`),
        ),
      ),
    );
    expect(headers['cache-control']).toBe('no-store');
    // By https, through a proxy.
    const secure = { Origin: `https://127.0.0.1:${port}` };
    const answer = await new TestBrowser(url).request('session', {
      ...{ json: { token: ADMIN_TOKEN }, headers: secure },
    });
    expect(answer.status).toBe(200);
    for (const cookie of answer.headers['set-cookie'] ?? []) expect(cookie).toMatch(/; Secure$/);
  });

  it('with anything else is refused', async () => {
    const { url } = await open();
    const browser = new TestBrowser(url);
    const cases: [expected: string, json: unknown][] = [
      ['401 wrong_token', { token: 'a token of nobody' }],
      ['401 wrong_token', { token: '' }],
      ['401 wrong_token', { token: `${ADMIN_TOKEN} ` }],
      ['400 invalid', { token: ADMIN_TOKEN, name: 'x' }],
      ['400 invalid', { token: [ADMIN_TOKEN] }],
      ['400 invalid', {}],
      ['400 invalid', [ADMIN_TOKEN]],
      ['413 too_large', { token: 'x'.repeat(5000) }],
    ];
    for (const [expected, json] of cases)
      expect(codeOf(await browser.request('session', { json })), JSON.stringify(json)).toBe(expected);
    expect(codeOf(await browser.request('session', { body: '{"token":' }))).toBe('400 invalid');
    const headers = { 'Content-Type': 'text/plain' };
    const text = await browser.request('session', { json: { token: ADMIN_TOKEN }, headers });
    expect(codeOf(text)).toBe('415 not_json');
    expect(browser.cookie).toBe(undefined);
  });

  it('is refused after too many wrong tokens, also with a right one, until they are old', async () => {
    const clock = movableClock();
    const { url, log } = await open({ clock });
    const browser = new TestBrowser(url);
    for (let i = 0; i < MAX_OF_ADDRESS; i++) {
      expect(codeOf(await browser.login(`wrong token ${i}`))).toBe('401 wrong_token');
      // The holder of one token must not be able to guess another.
      if (i === 5) expect((await browser.login(READER_TOKEN)).status).toBe(200);
    }
    const locked = await browser.login();
    expect(codeOf(locked)).toBe('429 too_many_tries');
    const retryAfter = Number(locked.headers['retry-after']);
    expect(retryAfter).toBeGreaterThan(200);
    expect(log.filter(({ msg }) => String(msg).includes('wrong token'))).toHaveLength(MAX_OF_ADDRESS);
    clock.pass(retryAfter * 1000);
    expect((await browser.login()).status).toBe(200);
  });
});

describe('a session', () => {
  it('ends when it is not used, and timers are no use', async () => {
    const clock = movableClock();
    const browser = await loggedIn((await open({ clock })).url);
    const background = { headers: { 'X-Console-Background': '1' } };
    for (let i = 0; i < 3; i++) {
      clock.pass(IDLE_MS - 1000);
      expect((await browser.request('/records')).status).toBe(200);
    }
    clock.pass(IDLE_MS - 1000);
    expect((await browser.request('/records', background)).status).toBe(200);
    clock.pass(1000);
    expect(codeOf(await browser.request('/records', background))).toBe('401 not_logged_in');
    expect(codeOf(await browser.request('session'))).toBe('401 not_logged_in');
  });

  it('ends in any case', async () => {
    const clock = movableClock();
    const browser = await loggedIn((await open({ clock })).url);
    const { nowAt, endsAt } = (await browser.request('session')).json<Session & Record<string, string>>();
    expect(Date.parse(endsAt) - Date.parse(nowAt)).toBeGreaterThan(LASTS_MS - 5000);
    for (let passedMs = 0; passedMs < LASTS_MS - IDLE_MS; passedMs += IDLE_MS / 2) {
      clock.pass(IDLE_MS / 2);
      expect((await browser.request('session')).status).toBe(200);
    }
    const { idleEndsAt } = (await browser.request('session')).json<Session>();
    expect(Date.parse(idleEndsAt)).toBeLessThan(Date.parse(endsAt) + 5000);
    clock.pass(IDLE_MS - 1000);
    await browser.request('session');
    clock.pass(2000);
    expect(codeOf(await browser.request('session'))).toBe('401 not_logged_in');
  });

  it('ends with the logout and with the next login of the browser', async () => {
    const { url } = await open();
    const browser = await loggedIn(url);
    const { cookie: first, secret: firstSecret } = browser;
    await browser.login(READER_TOKEN);
    const { cookie: second, secret } = browser;
    expect((await browser.request('session', { method: 'DELETE' })).status).toBe(204);
    expect(browser.cookie).toBe(undefined);
    for (const [cookie, known] of [
      [first, firstSecret],
      [second, secret],
    ]) {
      const headers = { Cookie: cookie, 'X-Console-Secret': known };
      const answer = await browser.request('session', { headers });
      expect(codeOf(answer)).toBe('401 not_logged_in');
    }
    expect((await browser.request('session', { method: 'DELETE' })).status).toBe(204);
  });

  it('is one of at most a hundred: the one that was not used for the longest time ends', async () => {
    const { url } = await open();
    const [first, second] = [await loggedIn(url), await loggedIn(url)];
    await first.request('session');
    for (let i = 0; i < 99; i++) await loggedIn(url);
    expect([(await first.request('session')).status, (await second.request('session')).status]).toEqual([
      200, 401,
    ]);
  });

  it('opens the console and the records only, and a bearer token does not open the console', async () => {
    const browser = await loggedIn((await open()).url);
    expect((await browser.request('/metrics')).status).toBe(401);
    expect((await browser.request('/records')).status).toBe(200);
    const bearer = { headers: { Authorization: `Bearer ${ADMIN_TOKEN}`, Cookie: '' } };
    expect(codeOf(await browser.request('api/overview', bearer))).toBe('401 not_logged_in');
  });
});

describe('a request of another page', () => {
  const find = { json: { merchant: 'M-ALPHA', key: 'no such key' } };

  it('gets nothing by the cookie alone, which browsers send to every port of a host', async () => {
    const clock = movableClock();
    const { url } = await open({ clock });
    const [browser, other] = [await loggedIn(url), await loggedIn(url)];
    const secrets = [undefined, '', `${browser.secret}x`, other.secret];
    for (const secret of secrets) {
      const headers = { 'X-Console-Secret': secret };
      for (const path of ['session', 'api/overview'])
        expect(codeOf(await browser.request(path, { headers })), path).toBe('401 not_logged_in');
      // Without the header, it is not the page that asks.
      const refused = secret === undefined ? '401 token_required' : '401 not_logged_in';
      expect(codeOf(await browser.request('/records', { headers }))).toBe(refused);
      expect(codeOf(await browser.request('/records/find', { ...find, headers }))).toBe(refused);
      const { cookie } = browser;
      await browser.request('session', { method: 'DELETE', headers });
      browser.cookie = cookie;
    }
    expect((await browser.request('session')).body.includes(browser.secret)).toBe(false);
    // Nor does it keep the session alive.
    clock.pass(IDLE_MS - 1000);
    await browser.request('session', { headers: { 'X-Console-Secret': undefined } });
    clock.pass(1000);
    expect(codeOf(await browser.request('session'))).toBe('401 not_logged_in');
  });

  it('cannot change anything without the origin of the page', async () => {
    const browser = await loggedIn((await open()).url);
    const cases: [expected: string, headers: Record<string, string | undefined>][] = [
      ['404 absent', {}],
      ['403 foreign_origin', { Origin: undefined }],
      ['403 foreign_origin', { Origin: 'null' }],
      ['403 foreign_origin', { Origin: 'http://127.0.0.1:1' }],
      ['403 foreign_origin', { Origin: 'http://evil.example' }],
      ['403 foreign_origin', { Origin: `${browser.origin}.evil.example` }],
      ['403 foreign_origin', { 'Sec-Fetch-Site': 'same-site' }],
      ['403 foreign_origin', { 'Sec-Fetch-Site': 'cross-site' }],
      ['403 foreign_origin', { 'Sec-Fetch-Site': 'none' }],
      ['404 absent', { 'Sec-Fetch-Site': undefined }],
    ];
    for (const [expected, changed] of cases) {
      const answer = await browser.request('/records/find', {
        ...find,
        headers: changed,
      });
      expect(codeOf(answer), JSON.stringify(changed)).toBe(expected);
    }
    const headers = { Origin: 'http://evil.example' };
    expect(codeOf(await browser.request('session', { method: 'DELETE', headers }))).toBe(
      '403 foreign_origin',
    );
    expect((await browser.request('session')).status).toBe(200);
  });

  it('cannot log in, or read', async () => {
    const browser = await loggedIn((await open()).url);
    const foreign = { 'Sec-Fetch-Site': 'same-site' };
    for (const path of ['session', 'api/overview', '/records'])
      expect(codeOf(await browser.request(path, { headers: foreign })), path).toBe('403 foreign_origin');
    const login = { json: { token: ADMIN_TOKEN }, headers: { Origin: 'http://evil.example' } };
    expect(codeOf(await browser.request('session', login))).toBe('403 foreign_origin');
    // A link on another site must still open this page.
    expect((await browser.request('', { headers: { 'Sec-Fetch-Site': 'cross-site' } })).status).not.toBe(403);
  });

  it('under a name that was made to resolve to a loopback address is refused', async () => {
    const [known, listed] = [await open(), await open({ admin: { hosts: ['Gateway.Internal'] } })];
    const status = async (url: string, Host: string) =>
      (await send(url, { path: '/console/', headers: { Host } })).status === 421;
    for (const host of [
      '127.0.0.1:8081',
      'localhost',
      'LOCALHOST:1',
      '[::1]:8081',
      '10.0.0.7',
      'a.localhost',
    ])
      expect(await status(known.url, host), host).toBe(false);
    for (const host of [
      'evil.example',
      'localhost.evil.example:8081',
      'gateway.internal',
      '127.0.0.1.nip.io',
    ])
      expect(await status(known.url, host), host).toBe(true);
    expect(await status(listed.url, 'gateway.internal:8081')).toBe(false);
    // Programs call these under any name.
    const healthz = { path: '/healthz', headers: { Host: 'evil.example' } };
    expect((await send(known.url, healthz)).status).toBe(200);
  });
});
