import { randomUUID } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import type { ConsoleProblem } from '../../../src/console/contract.ts';
import type {
  RecordsPage,
  ResolvedRecord,
  ShownRecord,
  SortedPage,
  StoredResponse,
} from '../../../src/doubts/record-view.ts';
import { recordIdOf } from '../../../src/ledger/record-id.ts';
import { withdraw } from '../../support/client.ts';
import {
  ADMIN_TOKEN,
  codeOf,
  consoleOptions,
  loggedIn,
  READER_TOKEN,
  SUPPORT_TOKEN,
  type TestBrowser,
} from '../../support/console.ts';
import { metric } from '../../support/metrics.ts';
import { expectProblem } from '../../support/problem.ts';
import { openGateway, type Stack, stackForFile } from '../../support/stack.ts';

const LEASE_MS = 1500;
const ENCRYPTION = { keys: [{ id: 'e1', secret: 'ab'.repeat(32) }] };

const stack = await stackForFile({
  admin: consoleOptions,
  lock: { leaseMs: LEASE_MS },
  upstream: { connectTimeoutMs: 500 },
  idempotency: { maxStoredBytes: 1_500_000 },
  store: { kind: 'sqlite', encryption: ENCRYPTION },
});
const admin = await loggedIn(stack.adminUrl);
const support = await loggedIn(stack.adminUrl, SUPPORT_TOKEN);

const find = (browser: TestBrowser, key: string) =>
  browser.ask<ShownRecord>('/records/find', { json: { merchant: 'M-ALPHA', key } });

/** A key in doubt, which the backend has executed. */
async function inDoubt(
  fault = 'execute-then-reset',
): Promise<ShownRecord & { key: string; execution: string }> {
  const key = randomUUID();
  expect((await withdraw(stack.url, { key, fault })).status).toBe(502);
  const found = await find(admin, key);
  return { ...found, key, execution: String(found.record?.execution) };
}

const resolve = (browser: TestBrowser, recordId: string, json: object) =>
  browser.request(`/records/${recordId}/resolve`, { json });

describe('a key in doubt', () => {
  it('is listed, and resolved', async () => {
    const { key, recordId, execution } = await inDoubt();
    const { records } = await admin.ask<RecordsPage>('/records?in_doubt=true');
    const listed = records.find((record) => record.key === key);
    expect(listed).toMatchObject({
      recordId,
      execution,
      state: 'in_doubt',
      merchant: 'M-ALPHA',
    });

    const answer = await resolve(admin, recordId, {
      ...{ as: 'completed', execution, reason: 'ledger entry 77', person: ' Ada Lovelace ', status: 201 },
      headers: { 'Content-Type': 'application/json', 'Set-Cookie': ['a=1'] },
      body: Buffer.from('{"id":7}').toString('base64'),
    });
    expect([answer.status, String(answer.body)]).toEqual([200, expect.any(String)]);
    const resolved = answer.json<ResolvedRecord>();
    const { record, audit } = await admin.ask<ShownRecord>(`/records/${recordId}`);
    expect(record).toMatchObject({ state: 'completed', wasInDoubt: true });
    expect(audit).toMatchObject([
      {
        ...{ by: 'Ada Lovelace (admin)', reason: 'ledger entry 77', from: { state: 'in_doubt' } },
        to: { as: 'completed', status: 201 },
      },
    ]);
    // The answer was what the audit trail says of it.
    expect([{ recordId, ...audit[0] }]).toEqual([{ ...resolved, at: expect.any(String) }]);
    expect(
      (await admin.ask<RecordsPage>('/records?in_doubt=true')).records.map((record) => record.key),
    ).not.toContain(key);
  });

  it('is listed among those of its merchant, however many others there are', async () => {
    const fault = 'reset-before-execute';
    const leave = async (key: string, secret = 'sk_sandbox_alpha') =>
      expect((await withdraw(stack.url, { key, secret, fault })).status).toBe(502);
    for (let left = 0; left <= 100; left += 10)
      await Promise.all(Array.from({ length: 10 }, () => leave(randomUUID())));
    const key = randomUUID();
    await leave(key, 'sk_sandbox_bravo');
    const keysOf = async (merchant: string) =>
      (await admin.ask<RecordsPage>(`/records?in_doubt=true&merchant=${merchant}`)).records.map(
        (record) => record.key,
      );
    expect(await keysOf('M-BRAVO')).toEqual([key]);
    expect(await keysOf('M-CHARLIE')).toEqual([]);
    expect(await keysOf('M-ALPHA')).not.toContain(key);
    // The store's first page has a hundred keys of all merchants.
    expect((await keysOf('M-ALPHA')).length).toBeGreaterThanOrEqual(100);
    const sorted = (query: string) =>
      admin.ask<SortedPage>(`/records?in_doubt=true&sort=newest&limit=50&${query}`);
    expect(await sorted('merchant=M-BRAVO')).toMatchObject({
      ...{ page: 1, pages: 1, matching: 1, isCut: false },
      records: [{ key, operation: 'withdraw', cause: expect.stringMatching(/./) }],
    });
    const second = await sorted('page=2&operation=withdraw');
    expect([second.page, second.records.length]).toEqual([2, 50]);
    const times = second.records.map(({ createdAt }) => Date.parse(String(createdAt)));
    expect(times).toEqual(times.toSorted((a, b) => b - a));
    const [cause] = second.causes;
    expect((await sorted(`cause=${encodeURIComponent(String(cause?.name))}`)).matching).toBe(cause?.keys);
    expect((await sorted('older_than_ms=3600000')).matching).toBe(0);
  });

  it('is not resolved twice, without a reason, for another execution, or without the permission', async () => {
    const { recordId, execution } = await inDoubt();
    const good = { as: 'completed', execution, reason: 'books' };
    const cases: [expected: string, json: object][] = [
      // The fields that /records has too are tried there.
      ['400 invalid', { ...good, reason: undefined }],
      ['400 invalid', { ...good, by: 'somebody else' }],
      ['400 invalid', { ...good, person: 'admin) (x' }],
      // More header values than a merchant's client reads.
      ['400 invalid', { ...good, headers: { 'X-A': Array(2000).fill('12345') }, status: 200 }],
      ['409 changed', { ...good, execution: '0123456789abcdef' }],
    ];
    for (const [expected, json] of cases)
      expect(codeOf(await resolve(admin, recordId, json)), JSON.stringify(json)).toBe(expected);
    for (const browser of [support, await loggedIn(stack.adminUrl, READER_TOKEN)])
      expect(codeOf(await resolve(browser, recordId, good))).toBe('403 not_permitted');
    expect((await resolve(admin, recordId, good)).status).toBe(200);
    const again = await resolve(admin, recordId, { ...good, as: 'released' });
    expect(codeOf(again)).toBe('409 changed');
    expect(again.json<ConsoleProblem>().record?.state).toBe('completed');
  });
});

describe('the look-up of a key', () => {
  it('shows its record without secrets and without its body', async () => {
    const key = randomUUID();
    await withdraw(stack.url, { key });
    const found = await find(await loggedIn(stack.adminUrl, READER_TOKEN), key);
    expect(found).toMatchObject({
      recordId: recordIdOf('gateway', 'M-ALPHA', key),
      record: {
        ...{ state: 'completed', merchant: 'M-ALPHA', operation: 'withdraw', key },
        ...{ encryptionKeyId: 'e1', fingerprint: expect.stringMatching(/^[0-9a-f]{64}$/) },
        ...{ requestId: expect.any(String), expiresAt: expect.any(String) },
        completion: {
          ...{ kind: 'response', status: 201, bodyBytes: expect.any(Number) },
          headers: expect.arrayContaining(['application/json; charset=utf-8']),
        },
      },
      audit: [],
    });
    expect(await admin.ask(`/records/${found.recordId}`)).toMatchObject({ recordId: found.recordId });
    const ofLayer = { merchant: 'M-ALPHA', key, layer: 'middleware' };
    expect(codeOf(await admin.request('/records/find', { json: ofLayer }))).toBe('404 absent');
    const named = { ...ofLayer, layer: 'gateway' };
    expect(await admin.ask('/records/find', { json: named })).toMatchObject({ recordId: found.recordId });
  });

  it('hides headers that may hold a secret, except with the permission', async () => {
    const { recordId, execution } = await inDoubt();
    const headers = { 'X-Session-Token': 'hunter2', 'Content-Type': 'text/plain' };
    await resolve(admin, recordId, { as: 'completed', execution, reason: 'books', status: 200, headers });
    expect(await admin.ask(`/records/${recordId}`)).toMatchObject({
      record: { completion: { headers: ['X-Session-Token', null, 'Content-Type', 'text/plain'] } },
    });
    const { headers: all } = await support.ask<StoredResponse>(`/records/${recordId}/body`);
    expect(all).toEqual(['X-Session-Token', 'hunter2', 'Content-Type', 'text/plain']);
    expect(admin.answers.filter(({ body }) => body.includes('hunter2'))).toEqual([]);
  });

  it('refuses what is not a key', async () => {
    const recordId = '0'.repeat(48);
    const cases: [expected: string, path: string, json?: object][] = [
      ['404 absent', '/records/find', { merchant: 'M-ALPHA', key: 'none' }],
      ['404 absent', `/records/${recordId}`],
      ['404 absent', `/records/${recordId}/resolve`, { as: 'released', execution: 'x', reason: 'y' }],
      ['400 invalid', '/records/xyz'],
      ['400 invalid', '/records/%zz'],
      ['400 invalid', '/records/find', { merchant: 'M-ALPHA' }],
      ['400 invalid', '/records/find', { merchant: 'M-ALPHA', key: 'x'.repeat(300) }],
      ['400 invalid', '/records/find', { merchant: 'M-ALPHA', key: 'x', layer: 'Gateway' }],
      ['405 method_not_allowed', '/records/find'],
      ['400 invalid', '/records?cursor=none'],
      ['400 invalid', '/records?cursor=a&cursor=b'],
      ['400 invalid', '/records?merchant='],
      ['400 invalid', '/records?in_doubt=true&sort=none'],
      ['400 invalid', '/records?sort=oldest'],
      ['400 invalid', '/records?in_doubt=true&sort=oldest&page=0'],
      ['400 invalid', '/records?in_doubt=true&sort=oldest&limit=1001'],
      ['400 invalid', '/records?in_doubt=true&sort=oldest&cursor=1'],
      ['400 invalid', '/records?merchant=a&merchant=b'],
    ];
    for (const [expected, path, json] of cases)
      expect(codeOf(await admin.request(path, { json })), path).toBe(expected);
  });
});

describe('a stored body', () => {
  it('is shown with the permission only, decrypted, and the log says to whom', async () => {
    const key = randomUUID();
    const { body } = await withdraw(stack.url, { key });
    const recordId = recordIdOf('gateway', 'M-ALPHA', key);
    expect(codeOf(await admin.request(`/records/${recordId}/body`))).toBe('403 not_permitted');
    const reads = () => stack.log.filter(({ msg }) => msg === 'a stored response was read in the console');
    const before = reads().length;
    const stored = await support.ask<StoredResponse>(`/records/${recordId}/body`);
    expect(stored).toMatchObject({ recordId, status: 201, bodyBytes: body.length });
    expect(Buffer.from(stored.body, 'base64')).toEqual(body);
    expect(reads().slice(before)).toMatchObject([{ by: 'support', recordId, client: '127.0.0.1' }]);
  });

  it('is cut after a MiB, and absent from a tombstone and from a key in doubt', async () => {
    const { recordId, execution } = await inDoubt();
    expect(codeOf(await support.request(`/records/${recordId}/body`))).toBe('404 no_body');
    await resolve(admin, recordId, { as: 'completed', execution, reason: 'books' });
    expect(codeOf(await support.request(`/records/${recordId}/body`))).toBe('404 no_body');
    const none = '0'.repeat(48);
    expect(codeOf(await support.request(`/records/${none}/body`))).toBe('404 absent');
    const large = await inDoubt();
    const bytes = Buffer.alloc(1_048_580, 'a');
    const answer = await resolve(admin, large.recordId, {
      ...{ as: 'completed', execution: large.execution, reason: 'books', status: 200 },
      body: bytes.toString('base64'),
    });
    expect(answer.status).toBe(200);
    const stored = await support.ask<StoredResponse>(`/records/${large.recordId}/body`);
    expect(stored.bodyBytes).toBe(bytes.length);
    expect(Buffer.from(stored.body, 'base64').length).toBe(1_048_576);
  });

  it('that this gateway cannot decrypt is refused', async () => {
    const key = randomUUID();
    await withdraw(stack.url, { key });
    const other = { keys: [{ id: 'e2', secret: 'cd'.repeat(32) }] };
    const store = { ...stack.config.store, encryption: other } as Stack['config']['store'];
    const gateway = await openGateway({ ...stack.config, store });
    const browser = await loggedIn(gateway.adminUrl, SUPPORT_TOKEN);
    const recordId = recordIdOf('gateway', 'M-ALPHA', key);
    for (const path of [`/records/${recordId}`, `/records/${recordId}/body`])
      expect(codeOf(await browser.request(path))).toBe('409 unreadable');
    const unavailable = { status: 503, code: 'store_unavailable', retryAfter: 1 } as const;
    expectProblem(await withdraw(gateway.url, { key }), unavailable);
    const [name, reason] = ['oncegate_unreadable_records_total', 'unknown_key'];
    expect(await metric(gateway.adminUrl, name, { reason }, ADMIN_TOKEN)).toBeGreaterThanOrEqual(3);
    expect(gateway.log.find(({ msg }) => msg === 'a record cannot be read')).toMatchObject({ reason });
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    await gateway.shutdown();
  });
});
