import { randomUUID } from 'node:crypto';
import { existsSync, writeFileSync } from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import os from 'node:os';
import { join } from 'node:path';
import { describe, expect, it, onTestFinished } from 'vitest';
import type { RecordView, ShownRecord } from '../../../src/doubts/record-view.ts';
import { recordIdOf } from '../../../src/ledger/record-id.ts';
import { rawBackend } from '../../support/backend.ts';
import { withdraw } from '../../support/client.ts';
import { expectPlain, newFolder, run } from '../../support/command.ts';
import { configFile, parsedConfig } from '../../support/config.ts';
import { eachRowInTurn } from '../../support/each-row.ts';
import { executionShown } from '../../support/execution.ts';
import { expectProblem } from '../../support/problem.ts';
import { stackForFile, stackForTest } from '../../support/stack.ts';
import { until } from '../../support/until.ts';

const stack = await stackForFile({ lock: { leaseMs: 60_000 }, upstream: { responseTimeoutMs: 60_000 } });
const folder = newFolder();
// The key file and the backend do not exist, because the command opens only the store.
const keys = { source: 'file' as const, path: join(folder, 'no-keys.yaml') };
const config = configFile({ ...stack.config, upstream: { url: 'http://127.0.0.1:1' }, auth: { keys } });

/** What the records API decides is tried on the admin port. Here is what the command makes of it. */
describe('the records command, while a gateway runs', () => {
  const records = (...args: string[]) => run(['records', ...args, '--config', config]);
  const inDoubt = async () => {
    const { code, stdout, stderr } = await records('list', '--in-doubt', '--json');
    expect([code, stderr]).toEqual([0, '']);
    return (JSON.parse(stdout) as { records: RecordView[] }).records;
  };
  const byKey = (key: string) => ['--merchant', 'M-ALPHA', '--key', key];
  const named = async (key: string) => [...byKey(key), ...(await executionShown(config, key))];
  /** Puts a new key in doubt. The fault decides whether the backend executes it. */
  const leaveInDoubt = async (fault = 'execute-then-reset') => {
    const key = randomUUID();
    expect((await withdraw(stack.url, { key, fault })).status).toBe(502);
    return key;
  };

  it('shows and lists a record with the id of the request that started it, as text and as JSON', async () => {
    const [key, requestId] = [randomUUID(), `first-${randomUUID()}`];
    await withdraw(stack.url, { key, headers: { 'X-Request-Id': requestId } });
    const retry = await withdraw(stack.url, { key, headers: { 'X-Request-Id': `second-${randomUUID()}` } });
    expect(retry.headers['idempotent-replayed']).toBe('true');
    const shown = await records('show', ...byKey(key));
    expect(shown.stdout).toMatch(new RegExp(`^request id +${requestId}$`, 'm'));
    const { record } = JSON.parse((await records('show', ...byKey(key), '--json')).stdout) as ShownRecord;
    expect(record).toMatchObject({ key, requestId, operation: 'withdraw', merchant: 'M-ALPHA' });
    // What an operator needs to find the payout in the backend's books: neither its amount nor its account.
    const { fingerprint = '', gatewayId, createdAt = '', changedAt, expiresAt = '' } = record ?? {};
    expect(fingerprint).toMatch(/^[0-9a-f]{64}$/);
    const keptMs = Date.parse(expiresAt) - Date.parse(createdAt);
    const { retentionMs } = parsedConfig(stack.config).idempotency;
    expect(Math.abs(keptMs - retentionMs)).toBeLessThan(1000);
    expect(shown.stdout).toContain(`\ngateway     ${gatewayId}\n`);
    expect(shown.stdout).toContain(`\nstarted at  ${createdAt}\nchanged at  ${changedAt}\nexpires at  20`);
    expect(shown.stdout).toContain(`\nfingerprint ${fingerprint}\n`);
    const listed = await records('list');
    expect(listed.stdout).toMatch(/^STATE +SINCE +MERCHANT +OPERATION +KEY +REQUEST ID +RECORD ID\n/);
    expect(listed.stdout).toMatch(
      new RegExp(` ${key} +${requestId} +${recordIdOf('gateway', 'M-ALPHA', key)}$`, 'm'),
    );
    const { records: all } = JSON.parse((await records('list', '--json')).stdout) as {
      records: RecordView[];
    };
    expect(all.find((one) => one.key === key)).toMatchObject({ requestId, fingerprint });
  });

  it('leads from a line of the log to the record, by its record id or by its request id', async () => {
    const requestId = `first-${randomUUID()}`;
    const headers = { 'X-Request-Id': requestId };
    const shown = async (...args: string[]) => {
      const { code, stdout, stderr } = await records('show', ...args, '--json');
      return { code, stderr, key: code === 0 ? (JSON.parse(stdout) as ShownRecord).record?.key : undefined };
    };
    const key = randomUUID();
    await withdraw(stack.url, { key, headers, fault: 'execute-then-reset' });
    const line = stack.log.find((one) => one.requestId === requestId && one.recordId !== undefined);
    const digits = String(line?.recordId);
    expect(digits).toMatch(/^[0-9a-f]{16}$/);
    expect(await shown('--record-id', digits)).toMatchObject({ code: 0, key });
    expect(await shown('--request-id', requestId)).toEqual({ code: 0, stderr: '', key });
    const resolve = ['--as', 'completed', '--reason', 'books'];
    const execution = (await executionShown(config, key)).join(' ');
    await records('resolve', '--record-id', digits, ...execution.split(' '), ...resolve);

    const open = await shown('--request-id', requestId);
    expect([open.code, open.stderr]).toEqual([1, expect.stringMatching(/^oncegate: No open record .+--all/)]);
    const all = await shown('--request-id', requestId, '--all');
    expect(all).toMatchObject({ code: 0, key });
    expect(all.stderr).toMatch(/^oncegate: reads all records .+\noncegate: \d+ records were read\n$/);
    await withdraw(stack.url, { key: randomUUID(), headers });
    const two = await shown('--request-id', requestId, '--all');
    expect([two.code, two.stderr]).toEqual([
      1,
      expect.stringMatching(/2 records were started .+(\n.*[0-9a-f]{48}){2}/),
    ]);
    const none = await shown('--request-id', 'no such request', '--all');
    expect([none.code, none.stderr]).toEqual([1, expect.stringContaining('No record was started')]);
  });

  it('resolves many keys from a file, after a dry run', async () => {
    const keys = [await leaveInDoubt(), await leaveInDoubt(), await leaveInDoubt()];
    // The oldest is the first.
    const listed = await inDoubt();
    expect(listed.map(({ key }) => key)).toEqual(keys);
    const [first, second, third] = listed.map(({ execution }) => ({ execution }));
    const lines = (await records('list', '--in-doubt')).stdout.split('\n');
    expect(lines.flatMap((line) => keys.filter((key) => line.includes(key)))).toEqual(keys);
    const done = randomUUID();
    await withdraw(stack.url, { key: done });
    const file = join(folder, 'many.jsonl');
    const body = '{"é":1}';
    const headers = ['Content-Type', 'application/json'];
    const completed = { as: 'completed', status: 201, headers, body };
    const entries = [
      { merchant: 'M-ALPHA', key: keys[0], ...first, ...completed },
      { merchant: 'M-ALPHA', key: keys[1], ...second, ...completed },
      { recordId: recordIdOf('gateway', 'M-ALPHA', keys[2] as string), ...third, as: 'completed' },
      { merchant: 'M-ALPHA', key: done, as: 'released', execution: 'another one' },
      { merchant: 'M-ALPHA', key: 'unknown', as: 'released', execution: 'e', body: 'none' },
    ];
    writeFileSync(file, entries.map((line) => `${JSON.stringify(line)}\n`).join('\n'));
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
    expect([retry.status, retry.body.toString()]).toEqual([201, body]);
    for (const key of keys) expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('names the mistakes of a file with their lines, and resolves nothing', async () => {
    const key = await leaveInDoubt();
    const [{ recordId, execution } = {}] = await inDoubt();
    const [paid, other] = [
      { execution, as: 'completed' },
      { merchant: 'M-ALPHA', key: 'k' },
    ];
    const isOther = '`recordId` is not that of merchant, key and layer';
    const noExecution =
      'execution: must be the execution that was looked up, as records list --lines prints it';
    const rows: [line: unknown, mistake?: string][] = [
      [{ merchant: 'M-ALPHA', key, ...paid }],
      [paid, 'must have `recordId`, or merchant and key'],
      [{ recordId, ...paid }, 'is the same key as line 1'],
      [{ recordId: recordId?.slice(0, 16), ...paid }, 'recordId: must have all 48 digits'],
      [{ ...other, as: 'released' }, noExecution],
      [{ ...other, as: 'completed' }, noExecution],
      [{ recordId, ...other, ...paid }, isOther],
      [{ recordId, merchant: 'M-ALPHA', key, layer: 'other', ...paid }, isOther],
      [
        { recordId, state: 'unreadable', ...paid },
        'its record cannot be read, so it cannot be resolved: remove the line',
      ],
    ];
    const file = join(folder, 'mistakes.jsonl');
    writeFileSync(file, `${rows.map(([line]) => JSON.stringify(line)).join('\n')}\nnonsense\n`);
    const resolveMany = () => records('resolve-many', '--from', file, '--reason', 'incident 12');
    const refused = await resolveMany();
    expect(refused).toMatchObject({ code: 64, stdout: '' });
    expectPlain(refused);
    const said = refused.stderr.replaceAll(`oncegate: ${file}: `, '').trimEnd().split('\n');
    const expected = [...rows, ['nonsense', 'is not JSON']].map(([, mistake], i) => [i + 1, mistake]);
    expect(said).toEqual(
      expected.flatMap(([line, mistake]) => (mistake === undefined ? [] : [`line ${line}: ${mistake}`])),
    );
    writeFileSync(file, '\n');
    const stderr = `oncegate: ${file} has no lines: nothing is to be resolved\n`;
    expect(await resolveMany()).toEqual({ code: 64, stdout: '', stderr });
    expect(await inDoubt()).toHaveLength(1);
    await records('resolve', ...(await named(key)), '--as', 'completed', '--reason', 'x');
  });

  it('refuses a line that says two things, and a file that is not UTF-8', async () => {
    const key = await leaveInDoubt();
    const [{ recordId, execution } = {}] = await inDoubt();
    const file = join(folder, 'twofold.jsonl');
    const resolveMany = (content: string | Buffer) => {
      writeFileSync(file, content);
      return records('resolve-many', '--from', file, '--reason', 'incident 12');
    };
    const paid = JSON.stringify({ recordId, execution, as: 'completed' });
    // The books have it, and the file was edited once more by the command that makes releases.
    const twofold = await resolveMany(paid.replace(/\}$/, ',"as":"released"}'));
    const twice = `oncegate: ${file}: line 1: has a member twice\n`;
    expect(twofold).toEqual({ code: 64, stdout: '', stderr: twice });
    const body = JSON.stringify({ recordId, execution, as: 'completed', status: 201, body: 'für Zoë' });
    expect(await resolveMany(Buffer.from(body, 'latin1'))).toEqual({
      ...{ code: 64, stdout: '', stderr: `oncegate: ${file} is not UTF-8\n` },
    });
    expect(await inDoubt()).toHaveLength(1);
    expect(await resolveMany(`\uFEFF${body}\r\n`)).toMatchObject({ code: 0 });
    expect((await withdraw(stack.url, { key })).body.toString()).toBe('für Zoë');
  });

  it('releases from a file only the execution that was looked at', async () => {
    const key = await leaveInDoubt('reset-before-execute');
    const [before] = await inDoubt();
    expect((await records('show', ...byKey(key))).stdout).toContain(`\ncause       ${before?.cause}\n`);
    const file = join(folder, 'released.jsonl');
    const line = { merchant: 'M-ALPHA', key, as: 'released', execution: before?.execution };
    writeFileSync(file, JSON.stringify(line));
    const release = () => records('resolve-many', '--from', file, '--reason', 'not in the books');
    expect(await release()).toMatchObject({ code: 0 });
    expect((await records('show', ...byKey(key))).stdout).toMatch(
      /^The record does not exist any more\.\n\n.+\n.+ released +not in the books\n$/,
    );
    // The retry is executed and its answer is lost: the same file, run again, must not release it for a second payout.
    await withdraw(stack.url, { key, fault: 'execute-then-reset' });
    const again = await release();
    expect(again.code).toBe(1);
    expect(again.stdout).toContain('belongs to another execution');
    expectProblem(await withdraw(stack.url, { key }), { status: 409, code: 'outcome_unknown' });
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);

    const resolve = ['resolve', ...byKey(key), '--reason', 'in the books'];
    const now = await executionShown(config, key);
    expect(await records(...resolve, '--as', 'completed', ...now)).toMatchObject({ code: 0, stderr: '' });
    const { stdout } = await records('show', ...byKey(key));
    expect(stdout).toMatch(/^response +not stored\n/m);
    expect(stdout).toMatch(/ in_doubt since \S+ +completed without a response +in the books\n$/);
    expect(await records('show', ...byKey(key), '--body')).toMatchObject({ code: 1, stdout: '' });
    expectProblem(await withdraw(stack.url, { key }), { status: 409, code: 'response_not_stored' });
  });

  it('completes what was executed, with the response that retries then get', async () => {
    const key = await leaveInDoubt();
    const recordId = recordIdOf('gateway', 'M-ALPHA', key);
    const body = Buffer.from([...Buffer.from('{"id":"p-1","mémo":"'), 0, 255, 10, 13]);
    writeFileSync(join(folder, 'body'), body);
    const resolved = await records(
      ...['resolve', '--record-id', recordId, '--as', 'completed', '--reason', 'in the books', '--by', 'ada'],
      ...['--status', '201', '--header', 'Content-Type: application/json', '--header', 'X-Payout:p-1'],
      ...(await executionShown(config, key)),
      ...['--body', join(folder, 'body')],
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
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);

    const shown = await records('show', ...byKey(key));
    expect(shown).toMatchObject({ code: 0, stderr: '' });
    expect(shown.stdout).toMatch(/^state +completed\n/);
    expect(shown.stdout).toMatch(/^response +201, 25 bytes\nheader +Content-Type: application\/json\n/m);
    expect(shown.stdout).toMatch(/ ada +in_doubt since \S+ +completed 201 +in the books\n/);
    expect(shown.stdout).not.toContain('p-1"');
    expect((await records('show', '--record-id', recordId, '--body')).stdout).toBe(body.toString());
    const again = await records('resolve', ...(await named(key)), '--as', 'released', '--reason', 'x');
    expect(again).toMatchObject({ code: 1, stdout: '' });
    expectPlain(again);
    expect(again.stderr).toMatch(/^oncegate: It is completed.+\noncegate: now: completed since /);
  });

  it('names a user without a name, as a container may have, by its number in the audit trail', async () => {
    const known = os.userInfo;
    onTestFinished(() => {
      os.userInfo = known;
      syncBuiltinESMExports();
    });
    os.userInfo = () => {
      throw new Error(
        'A system error occurred: uv_os_get_passwd returned ENOENT (no such file or directory)',
      );
    };
    syncBuiltinESMExports();
    const key = await leaveInDoubt();
    const done = await records('resolve', ...(await named(key)), '--as', 'completed', '--reason', 'x');
    expect(done).toMatchObject({ code: 0, stderr: '' });
    const { stdout } = await records('show', ...byKey(key), '--json');
    expect(JSON.parse(stdout).audit).toMatchObject([{ by: `uid ${process.getuid?.()}` }]);
  });

  it('explains what is wrong with its arguments, or with the record', async () => {
    const alive = randomUUID();
    const first = withdraw(stack.url, { key: alive, fault: 'delay=60000' });
    await until(() => stack.sandbox.requests.ofKey(alive) === 1);
    const resolve = ['resolve', '--record-id', 'a'.repeat(48), '--reason', 'x', '--execution', 'e'];
    const release = ['resolve', ...(await named(alive)), '--as', 'released', '--reason', 'x'];
    const complete = [...resolve, '--as', 'completed'];
    const cases: [args: string[], code: number, says: RegExp][] = [
      [release, 1, /still alive: try again after/],
      [['resolve', ...byKey(alive), '--as', 'released', '--reason', 'x'], 64, /--execution is missing/],
      [['show', ...byKey('nobody')], 1, /no record with the id [0-9a-f]{48}/],
      [['show', '--record-id', 'xyz'], 64, /48 hexadecimal digits/],
      [['show', '--record-id', 'a'.repeat(48), '--key', 'k'], 64, /name one record/],
      [['list', '--limit', '0'], 64, /--limit "0"/],
      [['list', '--cursor', 'no cursor'], 64, /cursor is not known/],
      [[...resolve, '--as', 'paid'], 64, /completed or released/],
      [[...resolve, '--as', 'released'], 1, /no record with the id a{48}/],
      [['show', '--request-id', 'r', '--key', 'k'], 64, /names the record alone/],
      [['show', '--record-id', 'abcd', '--all'], 64, /--all needs --request-id/],
      [['show', '--record-id', 'a'.repeat(47)], 1, /no record whose id begins with a{47}/],
      [[...resolve, '--as', 'released', '--status', '200'], 64, /no response/],
      [[...complete, '--header', 'a: b'], 64, /needs its status/],
      [[...complete, '--status', '99'], 64, /200 to 599/],
      [[...complete, '--status', '201', '--header', 'Content-Length: 3'], 64, /Content-Length/],
      [[...complete, '--status', '201', '--body', '/nowhere'], 64, /ENOENT/],
    ];
    await eachRowInTurn(cases, async ([args, code, says]) => {
      const ended = await records(...args);
      expect(ended).toMatchObject({ code, stdout: '' });
      expect(ended.stderr).toMatch(says);
      expect(ended.stderr).toMatch(/^oncegate: /);
    });
    stack.sandbox.endDelays(alive);
    expect((await first).status).toBe(201);
  });
});

it('the records command does not create a store that does not exist', async () => {
  const path = join(folder, 'data');
  const config = configFile({ upstream: { url: 'http://127.0.0.1:1' }, store: { kind: 'sqlite', path } });
  const ended = await run(['records', 'list', '--config', config]);
  expect(ended).toMatchObject({ code: 69, stdout: '' });
  expect(ended.stderr).toContain('there is no store in');
  expectPlain(ended);
  expect(existsSync(path)).toBe(false);
});

it('what a backend sends in a header reaches no terminal as a control character, and keeps its value in JSON', async () => {
  const value = 'echo \u009b2J';
  const url = await rawBackend((socket) => {
    socket.once('data', () => {
      socket.write('HTTP/1.1 201 Created\r\nContent-Length: 2\r\nX-Echo: ');
      socket.write(Buffer.from(`${value}\r\n\r\n{}`, 'latin1'));
    });
  });
  const other = await stackForTest({ upstream: { url } });
  const key = randomUUID();
  expect((await withdraw(other.url, { key })).status).toBe(201);
  const show = (...more: string[]) =>
    run([
      'records',
      'show',
      '--config',
      configFile(other.config),
      '--merchant',
      'M-ALPHA',
      '--key',
      key,
      ...more,
    ]);
  const [text, json] = [await show(), await show('--json')];
  for (const { code, stdout } of [text, json]) {
    expect(code).toBe(0);
    expect(stdout.replaceAll('\n', '')).not.toMatch(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/u);
  }
  expect(JSON.parse(json.stdout).record.completion.headers).toContain(value);
});
