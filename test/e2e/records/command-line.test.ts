import { randomUUID } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { scopeOf } from '../../../src/idempotency/fingerprint.ts';
import { openStore } from '../../../src/idempotency/stores/open-store.ts';
import { systemClock } from '../../../src/kernel/clock.ts';
import type { ShownRecord } from '../../../src/kernel/records.ts';
import { bring } from '../../contract/states.ts';
import { withdraw } from '../../support/client.ts';
import { expectPlain, newFolder, run } from '../../support/command.ts';
import { parsedConfig } from '../../support/config.ts';
import { expectProblem } from '../../support/problem.ts';
import { newRequest, paid } from '../../support/requests.ts';
import type { Stack } from '../../support/stack.ts';
import { openStackOn, storeKinds } from '../../support/stores.ts';

const LEASE_MS = 60_000;

/** The tests of a store run one after the other. The stores run concurrently. */
const sequential = { concurrent: false };

interface Listed {
  records: { scope: string; state: string; key: string; merchant: string; ownerGone?: boolean }[];
}

describe.concurrent.each(storeKinds)('the records command, while a gateway runs on %s', (kind) => {
  let stack: Stack;
  let config: string;
  const folder = newFolder();
  beforeAll(async () => {
    stack = await openStackOn(kind, { lock: { leaseMs: LEASE_MS }, log: { level: 'silent' } });
    config = join(folder, 'gateway.yaml');
    // The key file and the backend do not exist, because the command opens only the store.
    const keys = { source: 'file' as const, path: join(folder, 'no-keys.yaml') };
    writeFileSync(
      config,
      stringify({ ...stack.config, upstream: { url: 'http://127.0.0.1:1' }, auth: { keys } }),
    );
  });
  afterAll(() => stack?.close());

  const records = (...args: string[]) => run(['records', ...args, '--config', config]);
  const inDoubt = async (): Promise<Listed['records']> => {
    const { code, stdout, stderr } = await records('list', '--in-doubt', '--json');
    expect([code, stderr]).toEqual([0, '']);
    return (JSON.parse(stdout) as Listed).records;
  };
  const byKey = (key: string) => ['--merchant', 'M-ALPHA', '--key', key];

  it(
    'shows and lists a record with the id of the request that started it, as text and as JSON',
    sequential,
    async () => {
      const key = randomUUID();
      const requestId = `first-${randomUUID()}`;
      const headers = { 'X-Request-Id': requestId };
      await withdraw(stack.url, { key, headers });
      const retry = await withdraw(stack.url, { key, headers: { 'X-Request-Id': `second-${randomUUID()}` } });
      expect(retry.headers['idempotent-replayed']).toBe('true');
      const [shown, shownJson, listed, listedJson] = await Promise.all([
        records('show', ...byKey(key)),
        records('show', ...byKey(key), '--json'),
        records('list'),
        records('list', '--json'),
      ]);
      expect(shown.stdout).toMatch(new RegExp(`^request id +${requestId}$`, 'm'));
      const { record } = JSON.parse(shownJson.stdout) as ShownRecord;
      expect(record).toMatchObject({ key, requestId, operation: 'withdraw', merchant: 'M-ALPHA' });
      // What an operator needs to find the payout in the backend's books: neither its amount nor its account.
      const {
        fingerprint = '',
        gatewayId = '',
        createdAt = '',
        changedAt = '',
        expiresAt = '',
      } = record ?? {};
      expect(fingerprint).toMatch(/^[0-9a-f]{64}$/);
      const keptMs = Date.parse(expiresAt) - Date.parse(createdAt);
      const { retentionMs } = parsedConfig(stack.config).idempotency;
      expect(Math.abs(keptMs - retentionMs)).toBeLessThan(1000);
      expect(shown.stdout).toContain(`\ngateway     ${gatewayId}\n`);
      expect(shown.stdout).toContain(`\nstarted at  ${createdAt}\nchanged at  ${changedAt}\nexpires at  20`);
      expect(shown.stdout).toContain(`\nfingerprint ${fingerprint}\n`);
      expect(listed.stdout).toMatch(/^STATE +SINCE +MERCHANT +OPERATION +KEY +REQUEST ID +SCOPE\n/);
      expect(listed.stdout).toMatch(new RegExp(` ${key} +${requestId} +${scopeOf('M-ALPHA', key)}$`, 'm'));
      const { records: all } = JSON.parse(listedJson.stdout) as Listed;
      expect(all.find((record) => record.key === key)).toMatchObject({ requestId, fingerprint });
    },
  );

  it('lists the oldest keys in doubt first', sequential, async () => {
    const keys = Array.from({ length: 5 }, () => randomUUID());
    for (const key of keys) await withdraw(stack.url, { key, fault: 'execute-then-reset' });
    expect((await inDoubt()).map(({ key }) => key)).toEqual(keys);
    const { stdout } = await records('list', '--in-doubt');
    const lines = stdout.split('\n');
    expect(lines.flatMap((line) => keys.filter((key) => line.includes(key)))).toEqual(keys);
    const resolution = { as: 'completed' as const, by: 'ada', reason: 'in the books' };
    for (const key of keys)
      await stack.gateway.desk.answer({ kind: 'resolve', scope: scopeOf('M-ALPHA', key), ...resolution });
  });

  it('resolves many keys from a file, after a dry run', sequential, async () => {
    const keys = Array.from({ length: 3 }, () => randomUUID());
    for (const key of keys) await withdraw(stack.url, { key, fault: 'execute-then-reset' });
    const done = randomUUID();
    await withdraw(stack.url, { key: done });
    const file = join(folder, `${kind}.jsonl`);
    const completed = {
      as: 'completed',
      status: 201,
      headers: ['Content-Type', 'application/json'],
      body: '{"é":1}',
    };
    const lines = [
      ...keys.slice(0, 2).map((key) => ({ merchant: 'M-ALPHA', key, ...completed })),
      { scope: scopeOf('M-ALPHA', keys[2] as string), as: 'completed' },
      { merchant: 'M-ALPHA', key: done, as: 'released', execution: 'another one' },
      {
        merchant: 'M-ALPHA',
        key: 'unknown',
        as: 'released',
        execution: 'e',
        body: 'a released key has none',
      },
    ];
    writeFileSync(file, lines.map((line) => `${JSON.stringify(line)}\n`).join('\n'));
    const many = (...more: string[]) =>
      records('resolve-many', '--from', file, '--reason', 'incident 12', '--by', 'ada', ...more);

    const tried = await many('--dry-run');
    expect(tried.code).toBe(1);
    expect(tried.stdout).toMatch(
      /^(?:ok {3}.*would become completed\n){3}(?:FAIL .*\n){2}3 would be completed, 0 would be released, 2 not resolved\n$/,
    );
    expect(await inDoubt()).toHaveLength(3);

    const resolved = await many();
    expect(resolved.code).toBe(1);
    expect(resolved.stdout).toMatch(
      /^(?:ok {3}.*is now completed\n){3}(?:FAIL .*\n){2}3 completed, 0 released, 2 not resolved\n$/,
    );
    expect(await inDoubt()).toEqual([]);
    const retry = await withdraw(stack.url, { key: keys[0] as string });
    expect([retry.status, retry.body.toString()]).toEqual([201, '{"é":1}']);
    for (const key of keys) expect(stack.sandbox.ledger.payouts({ key })).toBe(1);

    const sameKey = { scope: scopeOf('M-ALPHA', keys[0] as string), as: 'completed' };
    const released = { merchant: 'M-ALPHA', key: 'a', as: 'released' };
    const mistakes = [lines[0], { as: 'completed' }, sameKey, released].map((line) => JSON.stringify(line));
    writeFileSync(file, `${mistakes.join('\n')}\nnonsense\n`);
    const refused = await many();
    expect(refused).toMatchObject({ code: 64, stdout: '' });
    const places = refused.stderr.split('\n').map((line) => line.split('.jsonl: ')[1]);
    expect(places.filter(Boolean)).toEqual([
      'line 2: must have scope, or merchant and key',
      'line 3: is the same key as line 1',
      'line 4: released needs the execution that was looked up, from records list --lines',
      'line 5: is not JSON',
    ]);
    expectPlain(refused);
  });

  it('releases from a file only the execution that was looked at', sequential, async () => {
    const key = randomUUID();
    await withdraw(stack.url, { key, fault: 'reset-before-execute' });
    const [before] = await inDoubt();
    const file = join(folder, `${kind}-released.jsonl`);
    const line = {
      merchant: 'M-ALPHA',
      key,
      as: 'released',
      execution: (before as { execution?: string }).execution,
    };
    writeFileSync(file, JSON.stringify(line));
    const release = () => records('resolve-many', '--from', file, '--reason', 'not in the books');
    expect(await release()).toMatchObject({ code: 0 });
    // The retry is executed and its answer is lost: the same file, run again, must not release it for a second payout.
    await withdraw(stack.url, { key, fault: 'execute-then-reset' });
    const again = await release();
    expect(again.code).toBe(1);
    expect(again.stdout).toContain('belongs to another execution');
    expectProblem(await withdraw(stack.url, { key }), { status: 409, code: 'outcome_unknown' });
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    const scope = scopeOf('M-ALPHA', key);
    await records('resolve', '--scope', scope, '--as', 'completed', '--reason', 'in the books');
  });

  it('completes what was executed, with the response that retries then get', sequential, async () => {
    const key = randomUUID();
    expectProblem(await withdraw(stack.url, { key, fault: 'execute-then-reset' }), {
      status: 502,
      code: 'outcome_unknown',
    });
    const scope = scopeOf('M-ALPHA', key);
    expect(await inDoubt()).toMatchObject([{ scope, key, state: 'in_doubt', merchant: 'M-ALPHA' }]);

    const body = Buffer.from([...Buffer.from('{"id":"p-1","mémo":"'), 0, 255, 10, 13]);
    writeFileSync(join(folder, `${kind}.body`), body);
    const resolved = await records(
      ...['resolve', '--scope', scope, '--as', 'completed', '--reason', 'in the books', '--by', 'ada'],
      ...['--status', '201', '--header', 'Content-Type: application/json', '--header', 'X-Payout:p-1'],
      ...['--body', join(folder, `${kind}.body`)],
    );
    expect(resolved).toMatchObject({ code: 0, stderr: '' });
    expect(resolved.stdout).toMatch(/^withdraw of M-ALPHA was in_doubt and is now completed/);
    const retry = await withdraw(stack.url, { key });
    expect([retry.status, retry.body]).toEqual([201, body]);
    expect(retry.headers).toMatchObject({
      'content-type': 'application/json',
      'x-payout': 'p-1',
      'idempotent-replayed': 'true',
    });
    expect(stack.sandbox.requests.ofKey(key)).toBe(1);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    expect(await inDoubt()).toEqual([]);

    const shown = await records('show', ...byKey(key));
    expect(shown).toMatchObject({ code: 0, stderr: '' });
    expect(shown.stdout).toMatch(/^state +completed\n/);
    expect(shown.stdout).toMatch(/^response +201, 25 bytes\nheader +Content-Type: application\/json\n/m);
    expect(shown.stdout).toMatch(/ ada +in_doubt since \S+ +completed 201 +in the books\n/);
    expect(shown.stdout).not.toContain('p-1"');
    expect((await records('show', '--scope', scope, '--body')).stdout).toBe(body.toString());

    const again = await records('resolve', ...byKey(key), '--as', 'released', '--reason', 'x');
    expect(again).toMatchObject({ code: 1, stdout: '' });
    expectPlain(again);
    expect(again.stderr).toMatch(/^oncegate: It is completed.+\noncegate: now: completed since /);
  });

  it('releases what was not executed, and one of its retries executes it', sequential, async () => {
    const key = randomUUID();
    expect((await withdraw(stack.url, { key, fault: 'reset-before-execute' })).status).toBe(502);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(0);
    const [seen] = await inDoubt();
    const resolve = ['resolve', ...byKey(key), '--as', 'released', '--reason', 'not in the books'];
    const other = await records(...resolve, '--execution', '0123456789abcdef');
    expect(other).toMatchObject({ code: 1, stdout: '' });
    expect(other.stderr).toMatch(/The record belongs to another execution/);
    const { execution } = seen as unknown as { execution: string };
    expect(await records(...resolve, '--execution', execution)).toMatchObject({ code: 0, stderr: '' });
    const gone = await records('show', ...byKey(key));
    expect(gone.stdout).toMatch(
      /^The record does not exist any more\.\n\n.+\n.+ released +not in the books\n$/,
    );
    const retries = await Promise.all(Array.from({ length: 5 }, () => withdraw(stack.url, { key })));
    expect(retries.map(({ status }) => status)).toEqual(Array(5).fill(201));
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    expect(stack.sandbox.ledger.duplicateKeys()).toEqual([]);
  });

  it('completes without a response, and retries get 409 response_not_stored', sequential, async () => {
    const key = randomUUID();
    await withdraw(stack.url, { key, fault: 'execute-then-reset' });
    const resolved = await records('resolve', ...byKey(key), '--as', 'completed', '--reason', 'in the books');
    expect(resolved).toMatchObject({ code: 0, stderr: '' });
    expectProblem(await withdraw(stack.url, { key }), { status: 409, code: 'response_not_stored' });
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    const { stdout } = await records('show', ...byKey(key));
    expect(stdout).toMatch(/^response +not stored\n/m);
    expect(stdout).toMatch(/ in_doubt since \S+ +completed without a response +in the books\n$/);
    const body = await records('show', ...byKey(key), '--body');
    expect(body).toMatchObject({ code: 1, stdout: '' });
  });

  it('refuses to resolve a record whose owner is alive, and writes nothing', sequential, async () => {
    const request = newRequest({ merchant: 'M-ALPHA' });
    const owner = await openStore(parsedConfig(stack.config), systemClock);
    try {
      await bring(owner, 'executing', request);
      const refused = await records('resolve', ...byKey(request.key), '--as', 'released', '--reason', 'x');
      expect(refused).toMatchObject({ code: 1, stdout: '' });
      expectPlain(refused);
      expect(refused.stderr).toContain(`still alive: try again after ${LEASE_MS} ms`);
      expect(await owner.complete(request, paid())).toBe('ok');
    } finally {
      await owner.close();
    }
  });

  // These mistakes are found without the store, so one store is enough.
  if (kind === 'sqlite')
    it('explains what is wrong with its arguments', sequential, async () => {
      const resolve = ['resolve', '--scope', 'a'.repeat(64), '--reason', 'x'];
      const cases: [args: string[], code: number, says: RegExp][] = [
        [['show', ...byKey('nobody')], 1, /There is no record/],
        [['show', '--scope', 'xyz'], 64, /64 hexadecimal digits/],
        [['show', '--scope', 'a'.repeat(64), '--key', 'k'], 64, /name one record/],
        [['list', '--limit', '0'], 64, /--limit "0"/],
        [['list', '--cursor', 'no cursor'], 64, /cursor is not known/],
        [[...resolve, '--as', 'paid'], 64, /completed or released/],
        [[...resolve, '--as', 'released'], 1, /nothing to resolve/],
        [[...resolve, '--as', 'released', '--status', '200'], 64, /no response/],
        [[...resolve, '--as', 'completed', '--header', 'a: b'], 64, /needs its status/],
        [[...resolve, '--as', 'completed', '--status', '99'], 64, /200 to 599/],
        [
          [...resolve, '--as', 'completed', '--status', '201', '--header', 'Content-Length: 3'],
          64,
          /Content-Length/,
        ],
        [[...resolve, '--as', 'completed', '--status', '201', '--body', '/nowhere'], 64, /ENOENT/],
      ];
      const ended = await Promise.all(cases.map(([args]) => records(...args)));
      for (const [at, [args, code, says]] of cases.entries()) {
        const { code: was, stdout = '', stderr = '' } = ended[at] ?? {};
        expect({ args, code: was, stdout }).toEqual({ args, code, stdout: '' });
        expect(stderr).toMatch(says);
        expect(stderr).toMatch(/^oncegate: /);
      }
    });
});

describe('the records command', () => {
  it('does not create a store that does not exist', async () => {
    const folder = newFolder();
    const config = join(folder, 'gateway.yaml');
    const path = join(folder, 'data');
    writeFileSync(
      config,
      stringify({ upstream: { url: 'http://127.0.0.1:1' }, store: { kind: 'sqlite', path } }),
    );
    const ended = await run(['records', 'list', '--config', config]);
    expect(ended).toMatchObject({
      code: 69,
      stdout: '',
      stderr: expect.stringContaining('there is no store in'),
    });
    expectPlain(ended);
  });
});
