import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { scopeOf } from '../../../src/idempotency/fingerprint.ts';
import { createSandbox, type Sandbox } from '../../../src/sandbox/sandbox.ts';
import { send, withdraw } from '../../support/client.ts';
import { FAST_START, newFolder } from '../../support/command.ts';
import { testConfig } from '../../support/config.ts';
import { metric } from '../../support/metrics.ts';
import { rawExchange } from '../../support/raw.ts';
import { type SpawnedGateway, spawnGateway } from '../../support/spawn.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { until } from '../../support/until.ts';

const TOKEN = 'a token of the administrators';
const RESPONSE = Buffer.from([...Buffer.from('{"id":"'), 0, 255]);

interface Target {
  url: string;
  adminUrl: string;
}

const ask = (
  { adminUrl }: Target,
  path: string,
  { json, token = TOKEN, raw }: { json?: object; token?: string; raw?: string } = {},
) => {
  const body = raw ?? (json && JSON.stringify(json));
  return send(adminUrl, {
    path,
    method: body === undefined ? 'GET' : 'POST',
    headers: {
      ...(token ? { Authorization: `Bearer ${token}` } : {}),
      ...(body === undefined ? {} : { 'Content-Type': 'application/json' }),
    },
    ...(body === undefined ? {} : { body }),
  });
};

const resolve = (target: Target, key: string, json: object) =>
  ask(target, `/records/${scopeOf('M-ALPHA', key)}/resolve`, {
    json: { by: 'ada', reason: 'books', ...json },
  });

/** Puts a new key in doubt. The fault decides whether the backend executes it. */
async function inDoubt({ url }: Target, fault = 'execute-then-reset'): Promise<string> {
  const key = randomUUID();
  expect((await withdraw(url, { key, fault })).status).toBe(502);
  return key;
}

/** Resolves an executed and an unexecuted key as an operator does, and retries both. */
async function resolveAndRetry(target: Target, sandbox: Sandbox): Promise<void> {
  const [paid, unpaid] = [await inDoubt(target), await inDoubt(target, 'reset-before-execute')];
  const list = async () =>
    (await ask(target, '/records?in_doubt=true')).json<{ records: { key: string }[] }>().records;
  expect((await list()).map(({ key }) => key).toSorted()).toEqual([paid, unpaid].toSorted());
  const body = RESPONSE.toString('base64');
  const headers = { 'Content-Type': 'application/json', 'X-Two': ['a', 'b'] };
  const completed = await resolve(target, paid, { as: 'completed', status: 201, headers, body });
  expect(completed.status).toBe(200);
  expect(completed.json()).toMatchObject({
    from: { state: 'in_doubt' },
    to: { as: 'completed', status: 201 },
  });
  const released = await resolve(target, unpaid, { as: 'released' });
  expect([released.status, (await list()).length]).toEqual([200, 0]);

  const replay = await withdraw(target.url, { key: paid });
  expect([replay.status, replay.body]).toEqual([201, RESPONSE]);
  expect(replay.headers).toMatchObject({ 'idempotent-replayed': 'true', 'x-two': 'a, b' });
  expect((await withdraw(target.url, { key: unpaid })).status).toBe(201);
  for (const key of [paid, unpaid]) expect(sandbox.ledger.payouts({ key })).toBe(1);
  const count = (as: string) =>
    metric(target.adminUrl, 'oncegate_resolutions_total', { as, by: 'operator' }, TOKEN);
  await until(async () => (await count('completed')) === 1 && (await count('released')) === 1);

  const shown = await ask(target, `/records/${scopeOf('M-ALPHA', paid)}`);
  const view = shown.json<{ record: object; audit: object[] }>();
  expect(view.record).toMatchObject({
    state: 'completed',
    completion: { kind: 'response', status: 201, bodyBytes: RESPONSE.length },
  });
  expect(view.audit).toMatchObject([{ by: 'ada', reason: 'books', to: { as: 'completed', status: 201 } }]);
  // The answer to the resolution was what the audit trail says of it, with the same names and forms.
  expect(view.audit).toEqual([
    { ...completed.json<{ scope?: string }>(), scope: undefined, at: expect.any(String) },
  ]);
  expect(shown.body.toString()).not.toMatch(/token|"body"/);
}

describe('records on the admin port', () => {
  let stack: Stack;
  beforeAll(async () => {
    stack = await openStack({ admin: { token: TOKEN }, idempotency: { maxStoredBytes: 2048 } });
  });
  afterAll(() => stack?.close());

  const problemOf = async (answer: ReturnType<typeof ask>) => {
    const { status, headers, json } = await answer;
    expect(headers['content-type']).toMatch(/^application\/problem\+json/);
    const { type, code } = json<{ type: string; code: string }>();
    const name = type.split(':').at(-1) ?? '';
    expect(name.replace(/^(records|admin)_/, '')).toBe(code);
    return `${status} ${name}`;
  };

  it('are listed, shown and resolved, and resolutions are counted and logged', async () => {
    await resolveAndRetry(stack, stack.sandbox);
    const lines = stack.log.filter(({ msg }) => msg === 'a key in doubt was resolved');
    const line = { merchant: 'M-ALPHA', operation: 'withdraw', by: 'ada', reason: 'books', from: 'in_doubt' };
    expect(lines).toMatchObject([
      { ...line, to: 'completed' },
      { ...line, to: 'released' },
    ]);
    for (const { scope } of lines) expect(scope).toMatch(/^[0-9a-f]{16}$/);
  });

  it('are not accessible without the token, and a request without it changes nothing', async () => {
    const key = await inDoubt(stack);
    const scope = scopeOf('M-ALPHA', key);
    const json = { as: 'released', by: 'eve', reason: 'none' };
    for (const token of ['', 'x', `${TOKEN}x`, 'sk_sandbox_alpha']) {
      const expected = `401 admin_${token ? 'wrong_token' : 'token_required'}`;
      expect(await problemOf(ask(stack, '/records', { token }))).toBe(expected);
      expect(await problemOf(ask(stack, `/records/${scope}`, { token }))).toBe(expected);
      expect(await problemOf(ask(stack, `/records/${scope}/resolve`, { token, json }))).toBe(expected);
    }
    expect((await withdraw(stack.url, { key })).status).toBe(409);
    await resolve(stack, key, { as: 'completed' });
  });

  it('are resolved only once, and not while their owner is alive', async () => {
    const key = await inDoubt(stack);
    const answers = await Promise.all(
      Array.from({ length: 6 }, () => resolve(stack, key, { as: 'completed', status: 201 })),
    );
    expect(answers.map(({ status }) => status).toSorted()).toEqual([200, 409, 409, 409, 409, 409]);
    const alive = randomUUID();
    const first = withdraw(stack.url, { key: alive, fault: 'delay=60000' });
    await until(() => stack.sandbox.requests.ofKey(alive) === 1);
    const refused = await resolve(stack, alive, { as: 'released' });
    expect([refused.status, refused.headers['retry-after']]).toEqual([409, '10']);
    stack.sandbox.endDelays(alive);
    expect((await first).status).toBe(201);
    expect(stack.sandbox.ledger.payouts({ key: alive })).toBe(1);
  });

  it('are not resolved if they belong to another execution than the one that was named', async () => {
    const key = await inDoubt(stack);
    const { record } = (await ask(stack, `/records/${scopeOf('M-ALPHA', key)}`)).json<{
      record: { execution: string };
    }>();
    expect((await resolve(stack, key, { as: 'released', execution: 'f'.repeat(16) })).status).toBe(409);
    expect((await resolve(stack, key, { as: 'completed', execution: record.execution })).status).toBe(200);
  });

  it('hide the values of header fields that may hold a secret', async () => {
    const key = await inDoubt(stack);
    const headers = {
      'Content-Type': 'application/json',
      'Set-Cookie': ['session=s3cret-a', 'other=s3cret-b'],
      Location: '/payouts/7?token=s3cret-c',
    };
    const resolution = { as: 'completed', status: 201, headers, body: RESPONSE.toString('base64') };
    expect((await resolve(stack, key, resolution)).status).toBe(200);
    const hidden = {
      completion: {
        headers: [
          ...['Content-Type', 'application/json', 'Set-Cookie', null, 'Set-Cookie', null],
          ...['Location', null],
        ],
      },
    };
    const shown = await ask(stack, `/records/${scopeOf('M-ALPHA', key)}`);
    const again = await resolve(stack, key, resolution);
    expect([shown.status, again.status]).toEqual([200, 409]);
    for (const answer of [shown, again]) {
      expect(answer.json()).toMatchObject({ record: hidden });
      expect(answer.body.toString()).not.toContain('s3cret');
    }
    expect((await ask(stack, '/records')).body.toString()).not.toContain('s3cret');
  });

  it('answer an invalid request with what is wrong, and change nothing', async () => {
    const scope = scopeOf('M-ALPHA', await inDoubt(stack));
    const at = `/records/${scope}/resolve`;
    const good = { as: 'completed', by: 'ada', reason: 'books' };
    const cases: [path: string, what: Parameters<typeof ask>[2], problem: string][] = [
      ['/records?limit=0', {}, '400 records_invalid'],
      ['/records?limit=9999999', {}, '400 records_invalid'],
      ['/records?in_doubt=perhaps', {}, '400 records_invalid'],
      ['/records?cursor=none', {}, '400 records_invalid'],
      ['/records?cursor=a&cursor=b', {}, '400 records_invalid'],
      ['/records/xyz', {}, '400 records_invalid'],
      [`/records/${'0'.repeat(64)}`, {}, '404 records_absent'],
      [`/records/${'0'.repeat(64)}/resolve`, { json: good }, '404 records_absent'],
      [at, { raw: 'no json' }, '400 records_invalid'],
      [at, { json: { ...good, as: 'paid' } }, '400 records_invalid'],
      [at, { json: { ...good, by: '' } }, '400 records_invalid'],
      [at, { json: { ...good, reason: 'two\nlines' } }, '400 records_invalid'],
      [at, { json: { ...good, more: 1 } }, '400 records_invalid'],
      [at, { json: { ...good, body: 'not base64!' } }, '400 records_invalid'],
      [at, { json: { ...good, status: 201, headers: { 'A\r\nB': 'c' } } }, '400 records_invalid'],
      [at, { json: { ...good, status: 201, headers: { A: 'c\r\nd: e' } } }, '400 records_invalid'],
      [at, { json: { ...good, status: 201, body: 'A'.repeat(4000) } }, '400 records_invalid'],
    ];
    for (const [path, what, expected] of cases)
      expect([path, await problemOf(ask(stack, path, what))]).toEqual([path, expected]);
    const { json } = await ask(stack, `/records/${scope}`);
    expect(json()).toMatchObject({ record: { state: 'in_doubt' }, audit: [] });
  });

  it.each([
    [TOKEN, 413],
    ['a wrong token', 401],
  ])('refuse a body that is too large before it is read: Bearer %s', async (token, status) => {
    const head = [
      `POST /records/${'0'.repeat(64)}/resolve HTTP/1.1`,
      ...['Host: admin.test', 'Content-Type: application/json', 'Content-Length: 3000000'],
      `Authorization: Bearer ${token}`,
    ];
    const port = Number(new URL(stack.adminUrl).port);
    // No byte of the body is sent, and the gateway closes the connection.
    const [answer] = await rawExchange(port, `${head.join('\r\n')}\r\n\r\n`);
    expect(answer?.status).toBe(status);
    expect(answer?.headers['content-type']).toMatch(/^application\/problem\+json/);
  });

  it('are listed in pages, each record once', async () => {
    const keys = [await inDoubt(stack), await inDoubt(stack), await inDoubt(stack)];
    const seen: string[] = [];
    let cursor = '';
    do {
      const page = (await ask(stack, `/records?in_doubt=true&limit=2${cursor}`)).json<{
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

  it('are not served if the configuration has no token', async () => {
    const open = await openStack();
    try {
      const key = await inDoubt(open);
      expect(await problemOf(ask(open, '/records'))).toBe('403 records_off');
      expect(await problemOf(resolve(open, key, { as: 'released' }))).toBe('403 records_off');
      expect((await withdraw(open.url, { key })).status).toBe(409);
    } finally {
      await open.close();
    }
  });
});

describe('records on the admin port of two workers', () => {
  let sandbox: Sandbox;
  let gateway: SpawnedGateway;
  beforeAll(async () => {
    sandbox = await createSandbox({ port: 0 });
    const config = testConfig(newFolder(), sandbox.url, {
      workers: 2,
      admin: { host: '127.0.0.1', port: 0, token: TOKEN },
    });
    gateway = await spawnGateway(config, FAST_START, newFolder());
  });
  afterAll(async () => {
    await gateway?.end('SIGKILL');
    await sandbox?.close();
  });

  it('are listed, shown and resolved, and the metrics of both workers are added up', async () => {
    await resolveAndRetry(gateway, sandbox);
  });
});
