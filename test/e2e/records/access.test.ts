import { randomUUID } from 'node:crypto';
import type http from 'node:http';
import { describe, expect, it } from 'vitest';
import { recordIdOf } from '../../../src/ledger/record-id.ts';
import { send, withdraw } from '../../support/client.ts';
import {
  ADMIN_TOKEN,
  adminPortOf,
  codeOf,
  consoleOptions,
  loggedIn,
  METRICS_TOKEN,
  READER_TOKEN,
  SUPPORT_TOKEN,
} from '../../support/console.ts';
import { stackForFile } from '../../support/stack.ts';

const ADA_TOKEN = 'a token that may do everything';
const tokens = [
  ...consoleOptions.tokens,
  { name: 'ada', token: ADA_TOKEN, may: ['resolve' as const, 'bodies' as const] },
];

const stack = await stackForFile();
const key = randomUUID();
const recordId = recordIdOf('gateway', 'M-ALPHA', key);
await withdraw(stack.url, { key });

type Headers = http.OutgoingHttpHeaders;

/** The requests of the records' API. Whoever may resolve learns that nobody looked at this execution. */
const REQUESTS = [
  ['GET', '/records'],
  ['POST', '/records/find', { merchant: 'M-ALPHA', key }],
  ['GET', `/records/${recordId}`],
  ['GET', `/records/${recordId}/body`],
  ['POST', `/records/${recordId}/resolve`, { as: 'released', execution: 'f'.repeat(16), reason: 'none' }],
] as const;

/** Each path with a method that it does not have. */
const WRONG = [
  ['DELETE', '/records'],
  ['PUT', '/records/find'],
  ['POST', `/records/${recordId}`],
  ['DELETE', `/records/${recordId}/body`],
  ['GET', `/records/${recordId}/resolve`],
] as const;

/** What the answers to the requests say. */
async function answersTo(
  url: string,
  headers: Headers,
  requests: readonly (readonly unknown[])[] = REQUESTS,
) {
  const codes: string[] = [];
  for (const [method, path, json] of requests) {
    const isProgram = 'Authorization' in headers && !('X-Console-Secret' in headers);
    const body =
      json && JSON.stringify({ ...json, ...(isProgram && 'as' in (json as object) && { by: 'eve' }) });
    const isSafe = method === 'GET';
    const { Origin, ...others } = headers;
    const answer = await send(url, {
      ...{ method: String(method), path: String(path) },
      headers: {
        ...(body !== undefined && { 'Content-Type': 'application/json' }),
        // As browsers do.
        ...(!isSafe && Origin !== undefined && { Origin }),
        ...others,
      },
      ...(body !== undefined && { body: String(body) }),
    });
    codes.push(codeOf(answer));
  }
  return codes;
}

const all = (code: string): string[] => REQUESTS.map(() => code);

describe('the records of the admin port', () => {
  it('are for admin.token and for sessions, each to what it permits', async () => {
    const { url } = await adminPortOf(stack, undefined, { tokens });
    const bearer = (token: string): Headers => ({ Authorization: `Bearer ${token}` });
    const headersOf = async (token: string): Promise<Headers & { Cookie: string }> => {
      const { cookie = '', secret, origin } = await loggedIn(url, token);
      return { Cookie: cookie, 'X-Console-Secret': secret, Origin: origin, 'Sec-Fetch-Site': 'same-origin' };
    };
    const ada = await headersOf(ADA_TOKEN);
    const other = await headersOf(ADA_TOKEN);
    const { Origin, ...withoutOrigin } = ada;
    const { Cookie, ...withoutCookie } = ada;
    const { 'X-Console-Secret': _, ...withoutSecret } = ada;
    const foreign = 'http://evil.example';
    const rebound = { Host: 'rebound.example', Origin: 'http://rebound.example' };
    const changing = '403 foreign_origin';
    const rows: [who: string, headers: Headers, expected: string[]][] = [
      ['nobody', {}, all('401 token_required')],
      ['a wrong token', bearer('a wrong token'), all('401 wrong_token')],
      ['a token of a person as bearer', bearer(ADA_TOKEN), all('401 wrong_token')],
      ['a token for the metrics', bearer(METRICS_TOKEN), all('401 wrong_token')],
      ['admin.token', bearer(ADMIN_TOKEN), ['200', '200', '200', '403 not_permitted', '409 changed']],
      [
        'a session of admin.token',
        await headersOf(ADMIN_TOKEN),
        ['200', '200', '200', '403 not_permitted', '409 changed'],
      ],
      ['a session that may do everything', ada, ['200', '200', '200', '200', '409 changed']],
      [
        'a session that may see bodies',
        await headersOf(SUPPORT_TOKEN),
        ['200', '200', '200', '200', '403 not_permitted'],
      ],
      [
        'a session that may read',
        await headersOf(READER_TOKEN),
        ['200', '200', '200', '403 not_permitted', '403 not_permitted'],
      ],
      ['a cookie alone', withoutSecret, all('401 token_required')],
      ['a cookie alone, and no more', { Cookie }, all('401 token_required')],
      ['a secret alone', withoutCookie, all('401 not_logged_in')],
      ['an empty secret', { ...ada, 'X-Console-Secret': '' }, all('401 not_logged_in')],
      [
        'the secret of another session',
        { ...ada, 'X-Console-Secret': other['X-Console-Secret'] },
        all('401 not_logged_in'),
      ],
      [
        'an ended session with admin.token as bearer',
        { ...bearer(ADMIN_TOKEN), 'X-Console-Secret': 'ended', Origin },
        all('401 not_logged_in'),
      ],
      [
        'a session behind a proxy that sends its own token',
        { ...bearer('of a proxy'), ...ada },
        [...['200', '200', '200', '200', '409 changed']],
      ],
      ['a session without an origin', withoutOrigin, ['200', changing, '200', '200', changing]],
      [
        'a session, from another origin',
        { ...ada, Origin: foreign },
        ['200', changing, '200', '200', changing],
      ],
      ['a session, from another port', { ...ada, 'Sec-Fetch-Site': 'same-site' }, all('403 foreign_origin')],
      ['a session, from another site', { ...ada, 'Sec-Fetch-Site': 'cross-site' }, all('403 foreign_origin')],
      ['a session, under a foreign name', { ...ada, ...rebound }, all('421 wrong_host')],
      ['nobody, under a foreign name', { 'X-Console-Secret': '', ...rebound }, all('421 wrong_host')],
      [
        'a session that sends a form',
        { ...ada, 'Content-Type': 'application/x-www-form-urlencoded' },
        ['200', '415 not_json', '200', '200', '415 not_json'],
      ],
    ];
    for (const [who, headers, expected] of rows)
      expect([who, ...(await answersTo(url, headers))]).toEqual([who, ...expected]);
    const methods: [who: string, headers: Headers, code: string][] = [
      ['nobody', {}, '401 token_required'],
      ['a cookie alone', withoutSecret, '401 token_required'],
      ['admin.token', bearer(ADMIN_TOKEN), '405 method_not_allowed'],
      ['a session', ada, '405 method_not_allowed'],
    ];
    for (const [who, headers, code] of methods)
      expect([who, ...(await answersTo(url, headers, WRONG))]).toEqual([who, ...all(code)]);
  });

  it('are for sessions only without admin.token, and for programs only without the console', async () => {
    const people = await adminPortOf(stack, undefined, { token: undefined, tokens });
    const browser = await loggedIn(people.url, READER_TOKEN);
    expect((await browser.request('/records')).status).toBe(200);
    for (const token of [ADMIN_TOKEN, READER_TOKEN])
      expect(await answersTo(people.url, { Authorization: `Bearer ${token}` })).toEqual(all('403 off'));
    expect(await answersTo(people.url, {})).toEqual(all('403 off'));

    const programs = await adminPortOf(stack, undefined, { console: false });
    const headers = { Cookie: browser.cookie, 'X-Console-Secret': browser.secret, Origin: programs.url };
    expect(await answersTo(programs.url, headers)).toEqual(all('401 token_required'));
    const bearer = { Authorization: `Bearer ${ADMIN_TOKEN}` };
    expect((await answersTo(programs.url, bearer))[0]).toBe('200');
  });
});
