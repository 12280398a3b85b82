import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { describe, expect, it } from 'vitest';
import { recordIdOf } from '../../../src/ledger/record-id.ts';
import { send, withdraw } from '../../support/client.ts';
import { metric } from '../../support/metrics.ts';
import { rawExchange } from '../../support/raw.ts';
import { stackForFile } from '../../support/stack.ts';
import { until } from '../../support/until.ts';

const TOKEN = 'a token of the administrators';
const RESPONSE = Buffer.from([...Buffer.from('{"id":"'), 0, 255]);

const stack = await stackForFile({ admin: { token: TOKEN }, idempotency: { maxStoredBytes: 2048 } });

interface Asked {
  json?: object;
  token?: string;
  raw?: string;
  adminUrl?: string;
}

function ask(path: string, { json, token = TOKEN, raw, adminUrl = stack.adminUrl }: Asked = {}) {
  const body = raw ?? (json && JSON.stringify(json));
  const headers = {
    ...(token && { Authorization: `Bearer ${token}` }),
    ...(body !== undefined && { 'Content-Type': 'application/json' }),
  };
  return send(adminUrl, { path, headers, ...(body !== undefined && { method: 'POST', body }) });
}

const at = (key: string) => `/records/${recordIdOf('gateway', 'M-ALPHA', key)}`;
const executionOf = async (key: string, more: Asked = {}) =>
  (await ask(at(key), more)).json<{ record?: { execution: string } }>().record?.execution;
const resolve = async (key: string, json: object, more: Asked = {}) => {
  const execution = await executionOf(key, more);
  return await ask(`${at(key)}/resolve`, {
    json: { by: 'ada', reason: 'books', execution, ...json },
    ...more,
  });
};

/** Puts a new key in doubt. The fault decides whether the backend executes it. */
async function inDoubt(fault = 'execute-then-reset', { url } = stack): Promise<string> {
  const key = randomUUID();
  expect((await withdraw(url, { key, fault })).status).toBe(502);
  return key;
}

async function problemOf(answer: ReturnType<typeof ask>) {
  const { status, headers, json } = await answer;
  expect(headers['content-type']).toMatch(/^application\/problem\+json/);
  const { type, code } = json<{ type: string; code: string }>();
  const name = type.split(':').at(-1) ?? '';
  expect(name.replace(/^(records|admin)_/, '')).toBe(code);
  return `${status} ${name}`;
}

describe('records on the admin port', () => {
  it('are listed, shown and resolved, and resolutions are counted and logged', async () => {
    const [paid, unpaid] = [await inDoubt(), await inDoubt('reset-before-execute')];
    const list = async () =>
      (await ask('/records?in_doubt=true')).json<{ records: { key: string }[] }>().records;
    expect((await list()).map(({ key }) => key).toSorted()).toEqual([paid, unpaid].toSorted());
    const body = RESPONSE.toString('base64');
    const headers = { 'Content-Type': 'application/json', 'X-Two': ['a', 'b'] };
    const completed = await resolve(paid, { as: 'completed', status: 201, headers, body });
    expect(completed.status).toBe(200);
    const result = { from: { state: 'in_doubt' }, to: { as: 'completed', status: 201 } };
    expect(completed.json()).toMatchObject(result);
    const released = await resolve(unpaid, { as: 'released' });
    expect([released.status, (await list()).length]).toEqual([200, 0]);

    const replay = await withdraw(stack.url, { key: paid });
    expect([replay.status, replay.body]).toEqual([201, RESPONSE]);
    expect(replay.headers).toMatchObject({ 'idempotent-replayed': 'true', 'x-two': 'a, b' });
    expect((await withdraw(stack.url, { key: unpaid })).status).toBe(201);
    for (const key of [paid, unpaid]) expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    const count = (as: string) =>
      metric(stack.adminUrl, 'oncegate_resolutions_total', { as, by: 'operator' }, TOKEN);
    await until(async () => (await count('completed')) === 1 && (await count('released')) === 1);

    const shown = await ask(at(paid));
    const view = shown.json<{ record: object; audit: object[] }>();
    expect(view.record).toMatchObject({
      state: 'completed',
      completion: { kind: 'response', status: 201, bodyBytes: RESPONSE.length },
    });
    expect(view.audit).toMatchObject([{ by: 'ada', reason: 'books', to: result.to }]);
    // The answer to the resolution was what the audit trail says of it, with the same names and forms.
    expect(view.audit).toEqual([
      { ...completed.json<{ recordId?: string }>(), recordId: undefined, at: expect.any(String) },
    ]);
    expect(shown.body.toString()).not.toMatch(/token|"body"/);
    const lines = stack.log.filter(({ msg }) => msg === 'a key in doubt was resolved');
    const line = { merchant: 'M-ALPHA', operation: 'withdraw', by: 'ada', reason: 'books', from: 'in_doubt' };
    expect(lines).toMatchObject([
      { ...line, to: 'completed' },
      { ...line, to: 'released' },
    ]);
    for (const { recordId } of lines) expect(recordId).toMatch(/^[0-9a-f]{16}$/);
  });

  it('are found by the first digits of their ids, and by the request that started them', async () => {
    const requestId = randomUUID();
    const headers = { 'X-Request-Id': requestId };
    // Two keys whose record ids have their first four digits in common.
    const first = new Map<string, string>();
    let [key, other] = [randomUUID() as string, undefined as string | undefined];
    const digitsOf = (one: string) => recordIdOf('gateway', 'M-ALPHA', one).slice(0, 4);
    for (; other === undefined; key = randomUUID()) {
      other = first.get(digitsOf(key));
      first.set(digitsOf(key), key);
      if (other !== undefined) break;
    }
    await withdraw(stack.url, { key, headers, fault: 'execute-then-reset' });
    const answer = await ask(at(key).slice(0, '/records/'.length + 4));
    expect(answer.json()).toMatchObject({ record: { key, requestId } });
    await withdraw(stack.url, { key: other });
    const both = await ask(`/records/${digitsOf(key)}`);
    const ids = [key, other].map((one) => recordIdOf('gateway', 'M-ALPHA', one));
    expect(both.json()).toMatchObject({ status: 409, code: 'ambiguous' });
    expect(both.json<{ recordIds: string[] }>().recordIds.toSorted()).toEqual(ids.toSorted());
    expect(await problemOf(ask('/records/abc'))).toBe('400 records_invalid');
    const absent = await ask('/records/find', { json: { merchant: 'M-ALPHA', key: 'nobody' } });
    expect(absent.json()).toMatchObject({
      ...{ status: 404, recordIds: [recordIdOf('gateway', 'M-ALPHA', 'nobody')] },
      detail: expect.stringContaining(recordIdOf('gateway', 'M-ALPHA', 'nobody')),
    });
    const found = async (query: string) => {
      const page = (await ask(`/records?request_id=${requestId}${query}`)).json<{
        records: { key: string }[];
        read: number;
      }>();
      expect(page.read).toBeGreaterThan(0);
      return page.records.map((record) => record.key);
    };
    expect([await found(''), await found('&open=true')]).toEqual([[key], [key]]);
    const ended = await resolve(key, { as: 'completed' });
    expect(ended.status).toBe(200);
    expect(await found('')).toEqual([key]);
    const open = await ask(`/records?open=true&request_id=${requestId}`);
    expect(open.json()).toEqual({ records: [], read: 0 });
  });

  it('are not accessible without the token, and a request without it changes nothing', async () => {
    const key = await inDoubt();
    const recordId = recordIdOf('gateway', 'M-ALPHA', key);
    const json = { as: 'released', by: 'eve', reason: 'none', execution: await executionOf(key) };
    for (const token of ['', 'x', `${TOKEN}x`, 'sk_sandbox_alpha']) {
      const expected = `401 admin_${token ? 'wrong_token' : 'token_required'}`;
      expect(await problemOf(ask('/records', { token }))).toBe(expected);
      expect(await problemOf(ask(`/records/${recordId}`, { token }))).toBe(expected);
      expect(await problemOf(ask(`/records/${recordId}/resolve`, { token, json }))).toBe(expected);
    }
    expect((await withdraw(stack.url, { key })).status).toBe(409);
    await resolve(key, { as: 'completed' });
  });

  it('are resolved only once, and not while their owner is alive', async () => {
    const key = await inDoubt();
    const answers = await Promise.all(
      Array.from({ length: 6 }, () => resolve(key, { as: 'completed', status: 201 })),
    );
    expect(answers.map(({ status }) => status).toSorted()).toEqual([200, 409, 409, 409, 409, 409]);
    const alive = randomUUID();
    const first = withdraw(stack.url, { key: alive, fault: 'delay=60000' });
    await until(() => stack.sandbox.requests.ofKey(alive) === 1);
    const refused = await resolve(alive, { as: 'released' });
    expect([refused.status, refused.headers['retry-after']]).toEqual([409, '10']);
    stack.sandbox.endDelays(alive);
    expect((await first).status).toBe(201);
    expect(stack.sandbox.ledger.payouts({ key: alive })).toBe(1);
  });

  it('are not resolved if they belong to another execution than the one that was named', async () => {
    const key = await inDoubt('reset-before-execute');
    const lookedAt = { execution: await executionOf(key) };
    expect((await resolve(key, { as: 'released', execution: 'f'.repeat(16) })).status).toBe(409);
    expect((await resolve(key, { as: 'released', ...lookedAt })).status).toBe(200);
    // The retry is paid and is in doubt again. A second operator has looked at the first execution, too.
    expect((await withdraw(stack.url, { key, fault: 'execute-then-reset' })).status).toBe(502);
    for (const as of ['released', 'completed'])
      expect(await problemOf(resolve(key, { as, ...lookedAt }))).toBe('409 records_changed');
    expect((await withdraw(stack.url, { key })).status).toBe(409);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    expect((await resolve(key, { as: 'completed' })).status).toBe(200);
  });

  it('hide the values of header fields that may hold a secret', async () => {
    const key = await inDoubt();
    const headers = {
      'Content-Type': 'application/json',
      'Set-Cookie': ['session=s3cret-a', 'other=s3cret-b'],
      Location: '/payouts/7?token=s3cret-c',
    };
    const resolution = { as: 'completed', status: 201, headers, body: RESPONSE.toString('base64') };
    expect((await resolve(key, resolution)).status).toBe(200);
    const hidden = {
      completion: {
        headers: [
          ...['Content-Type', 'application/json', 'Set-Cookie', null, 'Set-Cookie', null],
          ...['Location', null],
        ],
      },
    };
    const shown = await ask(at(key));
    const again = await resolve(key, resolution);
    expect([shown.status, again.status]).toEqual([200, 409]);
    for (const answer of [shown, again]) {
      expect(answer.json()).toMatchObject({ record: hidden });
      expect(answer.body.toString()).not.toContain('s3cret');
    }
    expect((await ask('/records')).body.toString()).not.toContain('s3cret');
  });

  it('answer an invalid request with what is wrong, and change nothing', async () => {
    const key = await inDoubt();
    const recordId = recordIdOf('gateway', 'M-ALPHA', key);
    const to = `/records/${recordId}/resolve`;
    const good = { as: 'completed', by: 'ada', reason: 'books', execution: await executionOf(key) };
    const cases: [path: string, what: Asked, problem: string][] = [
      ['/records?limit=0', {}, '400 records_invalid'],
      ['/records?limit=9999999', {}, '400 records_invalid'],
      ['/records?in_doubt=perhaps', {}, '400 records_invalid'],
      ['/records?cursor=none', {}, '400 records_invalid'],
      ['/records?cursor=a&cursor=b', {}, '400 records_invalid'],
      ['/records/xyz', {}, '400 records_invalid'],
      [`/records/${'0'.repeat(48)}`, {}, '404 records_absent'],
      [`/records/${'0'.repeat(48)}/resolve`, { json: good }, '404 records_absent'],
      [to, { raw: 'no json' }, '400 records_invalid'],
      [to, { json: { ...good, as: 'paid' } }, '400 records_invalid'],
      [to, { json: { ...good, execution: undefined } }, '400 records_invalid'],
      [to, { json: { ...good, as: 'released', execution: undefined } }, '400 records_invalid'],
      [to, { json: { ...good, by: '' } }, '400 records_invalid'],
      [to, { json: { ...good, reason: 'two\nlines' } }, '400 records_invalid'],
      [to, { json: { ...good, more: 1 } }, '400 records_invalid'],
      [to, { json: { ...good, body: 'not base64!' } }, '400 records_invalid'],
      [to, { json: { ...good, status: 201, headers: { 'A\r\nB': 'c' } } }, '400 records_invalid'],
      [to, { json: { ...good, status: 201, headers: { A: 'c\r\nd: e' } } }, '400 records_invalid'],
      [to, { json: { ...good, status: 201, body: 'A'.repeat(4000) } }, '400 records_invalid'],
    ];
    for (const [path, what, expected] of cases)
      expect([path, await problemOf(ask(path, what))]).toEqual([path, expected]);
    const { json } = await ask(`/records/${recordId}`);
    expect(json()).toMatchObject({ record: { state: 'in_doubt' }, audit: [] });
  });

  it('refuse a body that is too large before it is read', async () => {
    const port = Number(new URL(stack.adminUrl).port);
    for (const [token, status] of [
      [TOKEN, 413],
      ['a wrong token', 401],
    ]) {
      const head = [
        `POST /records/${'0'.repeat(48)}/resolve HTTP/1.1`,
        ...['Host: admin.test', 'Content-Type: application/json', 'Content-Length: 3000000'],
        `Authorization: Bearer ${token}`,
      ];
      // No byte of the body is sent, and the gateway closes the connection.
      const [answer] = await rawExchange(port, `${head.join('\r\n')}\r\n\r\n`);
      expect(answer?.status).toBe(status);
      expect(answer?.headers['content-type']).toMatch(/^application\/problem\+json/);
    }
  });

  it('are listed and shown although the expiry of some is in no calendar', async () => {
    const key = await inDoubt();
    const { path = '' } = stack.config.store as { path?: string };
    using file = new DatabaseSync(join(path, 'records.db'), { timeout: 10_000 });
    file.exec('PRAGMA ignore_check_constraints = ON');
    const change = 'UPDATE records SET expires_at = 8700000000000000 WHERE idempotency_key = ?';
    expect(file.prepare(change).run(key).changes).toBe(1);
    const { records } = (await ask('/records?in_doubt=true')).json<{
      records: { recordId: string; state: string }[];
    }>();
    const recordId = recordIdOf('gateway', 'M-ALPHA', key);
    expect(records).toContainEqual(expect.objectContaining({ recordId, state: 'in_doubt' }));
    expect((await ask(`/records/${recordId}`)).status).toBe(200);
  });

  it('are listed in pages, each record once', async () => {
    const keys = [await inDoubt(), await inDoubt(), await inDoubt()];
    const seen: string[] = [];
    let cursor = '';
    do {
      const page = (await ask(`/records?in_doubt=true&limit=2${cursor}`)).json<{
        records: { key: string }[];
        cursor?: string;
      }>();
      expect(page.records.length).toBeLessThanOrEqual(2);
      seen.push(...page.records.map(({ key }) => key));
      cursor = page.cursor === undefined ? '' : `&cursor=${page.cursor}`;
    } while (cursor);
    expect(seen).toEqual(expect.arrayContaining(keys));
    expect(new Set(seen).size).toBe(seen.length);
  });
});
