import { randomUUID } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import type { RecordView } from '../../../src/doubts/record-view.ts';
import type { Store } from '../../../src/ledger/ledger.ts';
import { openLedger } from '../../../src/ledger/open-store.ts';
import { systemClock } from '../../../src/lib/clock.ts';
import type { AuditRecord } from '../../../src/store/doubts.ts';
import { Names } from '../../../src/store/redis/commands.ts';
import type { Execution } from '../../../src/store/types.ts';
import { withdraw } from '../../support/client.ts';
import { type Ended, inShell, newFolder, run } from '../../support/command.ts';
import { configFile, type MoreConfig, parsedConfig, testConfig } from '../../support/config.ts';
import { commandsUnder } from '../../support/documents.ts';
import { startRedis } from '../../support/redis-server.ts';
import { duplicateOf, newRequest, paid } from '../../support/requests.ts';
import { spawnGateway } from '../../support/spawn.ts';
import { openSandbox } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

/** Runs the commands of the runbook in order, but for those to skip. Returns what each printed, and whether it failed. */
async function runRunbook(
  configFile: string,
  cwd: string,
  isSkipped = (_: string) => false,
): Promise<{ stdout: string; failed: boolean }[]> {
  const ended: { stdout: string; failed: boolean }[] = [];
  const commands = commandsUnder('docs/runbook/resolve-many-keys.md', 'After an incident: many keys at once');
  for (const { text } of commands.filter((command) => !isSkipped(command.text)))
    ended.push(
      await inShell(text.replaceAll('FILE', configFile), { cwd }).then(
        (stdout) => ({ stdout, failed: false }),
        ({ stdout }) => ({ stdout, failed: true }),
      ),
    );
  return ended;
}

/** A store with keys in doubt, as a gateway leaves them when the backend does not answer, and its configuration file. */
async function openIncident(count: number, more: MoreConfig = {}) {
  const input = testConfig(newFolder(), 'http://127.0.0.1:1', more);
  const folder = newFolder();
  const file = configFile(input, folder);
  const store: Store = await openLedger(parsedConfig(input), systemClock);
  onTestFinished(() => store.close());
  const requests = Array.from({ length: count }, () => newRequest());
  // A few at a time: on a busy machine, the store must answer within its time limit.
  for (let from = 0; from < count; from += 50)
    await Promise.all(
      requests.slice(from, from + 50).map(async (request) => {
        await store.start(request);
        await store.leaveInDoubt(request);
      }),
    );
  const write = (name: string, lines: object[]) => {
    writeFileSync(join(folder, name), lines.map((line) => `${JSON.stringify(line)}\n`).join(''));
    return join(folder, name);
  };
  const records = (args: string[], options = {}) => run(['records', ...args, '--config', file], options);
  return { store, requests, folder, file, write, records };
}

/** What `records list` names each key's execution. */
async function executionsIn(config: string): Promise<Map<string | undefined, string | undefined>> {
  const args = ['records', 'list', '--in-doubt', '--json', '--limit', '1000', '--config', config];
  const { records } = JSON.parse((await run(args)).stdout) as { records: RecordView[] };
  return new Map(records.map(({ key, execution }) => [key, execution]));
}

/** Acts right before a command writes that line. */
function atLine(line: number, act: () => void) {
  let lines = 0;
  const beforeWrite = () => {
    if (++lines === line) act();
  };
  return { beforeWrite };
}

const okIn = ({ stdout }: Ended) => stdout.match(/^ok {3}/gm)?.length;

it('the commands of the runbook resolve every key as the books have it', async () => {
  const sandbox = await openSandbox();
  const input = testConfig(newFolder(), sandbox.url, { lock: { leaseMs: 2000 } });
  const folder = newFolder();
  const dying = await spawnGateway(input, {}, { folder });
  const keysOf = (count: number) => Array.from({ length: count }, () => randomUUID());
  const [executed, unpaid, killed] = [keysOf(6), keysOf(3), keysOf(4)];
  await Promise.all([
    ...executed.map((key) => withdraw(dying.url, { key, fault: 'execute-then-reset' })),
    ...unpaid.map((key) => withdraw(dying.url, { key, fault: 'reset-before-execute' })),
  ]);
  const cut = killed.map((key) => withdraw(dying.url, { key, fault: 'delay=60000' }).catch(() => {}));
  await until(() => killed.every((key) => sandbox.requests.ofKey(key) === 1));
  await dying.end('SIGKILL');
  await Promise.all(cut);
  for (const key of killed) sandbox.endDelays(key);
  await until(() => killed.every((key) => sandbox.ledger.payouts({ key }) === 1));
  const gateway = await spawnGateway(input, {}, { folder });
  onTestFinished(() => void gateway.end('SIGKILL'));

  const all = [...executed, ...unpaid, ...killed];
  const executions = await until(async () => {
    const inDoubt = await executionsIn(gateway.file);
    return inDoubt.size === all.length ? inDoubt : undefined;
  });
  // An owner that pays twice would be seen here: the books have each key once.
  const books = all.filter((key) => sandbox.ledger.payouts({ key }) === 1);
  const entries = books.map((key) => ({
    ...{ merchant: 'M-ALPHA', key, execution: executions.get(key), as: 'completed' },
    ...{ status: 201, body: `{"key":"${key}"}` },
    headers: ['Content-Type', 'application/json'],
  }));
  writeFileSync(join(folder, 'books.jsonl'), entries.map((line) => `${JSON.stringify(line)}\n`).join(''));

  const ended = await runRunbook(gateway.file, folder);
  expect(ended.filter(({ failed }) => failed)).toEqual([]);
  expect(ended.map(({ stdout }) => stdout.trimEnd().split('\n').at(-1))).toEqual([
    ...['', '', `${books.length} would be completed, 0 would be released`, '', ''],
    ...[`${books.length} completed, 0 released`, ''],
    `0 would be completed, ${unpaid.length} would be released`,
    `0 completed, ${unpaid.length} released`,
  ]);
  const resolved = readFileSync(join(folder, 'resolved.txt'), 'utf8').trimEnd().split('\n');
  expect(resolved.at(-1)).toBe(`${books.length} completed, 0 released`);
  expect((await executionsIn(gateway.file)).size).toBe(0);

  // On a busy machine, a lease this short may lapse before a request is sent: 503, and it may be retried.
  const paidOnce = async (key: string) => {
    const answer = await withdraw(gateway.url, { key });
    return answer.status === 201 ? answer : undefined;
  };
  const retries = await Promise.all(all.map((key) => until(() => paidOnce(key))));
  for (const [i, key] of all.entries()) {
    if (books.includes(key)) expect(retries[i]?.body.toString()).toBe(`{"key":"${key}"}`);
    expect(sandbox.ledger.payouts({ key })).toBe(1);
  }
});

it('the commands of the runbook release nothing while a key that the books have is still in doubt', async () => {
  const { store, requests, folder, file, write, records } = await openIncident(2);
  const [{ merchant, key }] = requests as [Execution];
  // The list that an earlier attempt at these commands left.
  writeFileSync(join(folder, 'left.jsonl'), (await records(['list', '--in-doubt', '--lines'])).stdout);
  // The books have this payout, but the gateway cannot store so large a response.
  const looked = { merchant, key, execution: (await executionsIn(file)).get(key) };
  write('books.jsonl', [{ ...looked, as: 'completed', status: 201, body: 'x'.repeat(2_000_000) }]);
  const failed = (await runRunbook(file, folder)).filter((ended) => ended.failed);
  expect(failed[0]?.stdout).toMatch(/^FAIL .+: The body is larger than /);
  const states = await Promise.all(requests.map(async ({ recordId }) => (await store.get(recordId))?.state));
  expect(states).toEqual(['in_doubt', 'in_doubt']);
});

it('the commands of the runbook release nothing if step 3 was left out and an earlier incident was complete', async () => {
  const { store, requests, folder, file } = await openIncident(2);
  writeFileSync(join(folder, 'resolved.txt'), '1 completed, 0 released\n');
  await runRunbook(file, folder, (command) => command.includes('--from books.jsonl'));
  const states = await Promise.all(requests.map(async ({ recordId }) => (await store.get(recordId))?.state));
  expect(states).toEqual(['in_doubt', 'in_doubt']);
});

it.each([
  ['was a dry run', '1 would be completed, 0 would be released\n'],
  ['ended in the middle of a line, as on a full disk', 'ok   M-ALPHA order-1: is now completed\nok   M-AL'],
  ['ended before the summary says what was not resolved', '1 completed, 0 released'],
])('the commands of the runbook release nothing if step 3 %s', async (_, resolved) => {
  const { store, requests, folder, file } = await openIncident(2);
  writeFileSync(join(folder, 'resolved.txt'), resolved);
  await runRunbook(file, folder, (command) => /--from books\.jsonl|rm -f resolved/.test(command));
  const states = await Promise.all(requests.map(async ({ recordId }) => (await store.get(recordId))?.state));
  expect(states).toEqual(['in_doubt', 'in_doubt']);
});

it('a long report of a command that fails reaches a slow reader whole', async () => {
  const { folder, file, write } = await openIncident(0);
  const lines = Array.from({ length: 600 }, (_, i) => {
    const recordId = String(i).padStart(48, '0');
    return { recordId, execution: '0123456789abcdef', as: 'completed' };
  });
  const from = write('absent.jsonl', lines);
  // As behind `kubectl exec` or ssh, where the output is a pipe.
  const command = `oncegate records resolve-many --from ${from} --reason x --config ${file} 2>/dev/null | (sleep 3; cat)`;
  const report = (await inShell(command, { cwd: folder })).trimEnd().split('\n');
  expect(report).toHaveLength(lines.length + 1);
  expect(report.at(-1)).toBe('0 completed, 0 released, 600 not resolved');
});

it('many keys are resolved once each by runs that are killed, interrupted, and repeated', async () => {
  const KEYS = 330;
  const { store, requests, folder, records } = await openIncident(KEYS);
  const short = await records(['list', '--in-doubt', '--lines']);
  expect(short.stderr).toBe('oncegate: there may be more than --limit 100 records\n');
  const listed = await records(['list', '--in-doubt', '--lines', '--limit', '100000']);
  expect(listed.stderr).toBe('');
  // Every third key is not in the books.
  const lines = listed.stdout
    .trimEnd()
    .split('\n')
    .map((line, i) => line.replace(/\}$/, `,"as":"${i % 3 === 0 ? 'released' : 'completed'}"}`));
  expect(lines).toHaveLength(KEYS);
  const from = join(folder, 'keys.jsonl');
  writeFileSync(from, `\uFEFF${lines.join('\r\n')}\r\n`);
  const [released, completed] = [KEYS / 3, (2 * KEYS) / 3];
  const many = ['resolve-many', '--from', from, '--reason', 'incident 12', '--by', 'ada'];

  const tried = await records([...many, '--dry-run']);
  expect(tried.code).toBe(0);
  expect(tried.stdout).toMatch(
    new RegExp(`\\n${completed} would be completed, ${released} would be released\\n$`),
  );
  expect(tried.stderr).toBe([1, 2, 3].map((n) => `oncegate: ${n}00 of ${KEYS} keys\n`).join(''));

  // A run that ends between a write and its line is the worst that can happen.
  const dying = atLine(100, () => {
    throw new Error('killed');
  });
  const killed = await records(many, dying);
  // The progress counts no key whose line is missing.
  expect([okIn(killed), killed.stderr]).toEqual([99, 'oncegate: killed\n']);
  // The first hundred lines are the same as before.
  const interrupted = await records(
    many,
    atLine(200, () => process.emit('SIGINT')),
  );
  expect([interrupted.code, okIn(interrupted)]).toEqual([130, 100]);
  expect(interrupted.stdout).toMatch(
    /, 100 the same before, 130 not looked at: run the same command again\n$/,
  );

  // A merchant retries a released key before the command is repeated, so it is executed again.
  const trails = () => Promise.all(requests.map(({ recordId }) => store.audit(recordId)));
  const releasedAt = (await trails()).findIndex(([entry]) => entry?.to.as === 'released');
  const retry = duplicateOf(requests[releasedAt] as Execution);
  expect(await store.start(retry)).toEqual({ kind: 'started' });
  expect(await store.complete(retry, paid())).toBe('ok');
  const repeated = await records(many);
  expect(repeated.code).toBe(0);
  expect(repeated.stdout.match(/^FAIL/gm)).toBeNull();
  expect(repeated.stdout.match(/^same /gm)).toHaveLength(200);
  expect((await records(['list', '--in-doubt'])).stdout).toBe('Nothing is in doubt.\n');
  const last = await records(many);
  expect(last.stdout).toMatch(new RegExp(`\n0 completed, 0 released, ${KEYS} the same before\n$`));

  const after = await trails();
  expect(after.map((trail) => trail.length)).toEqual(Array(KEYS).fill(1));
  const became = (as: AuditRecord['to']['as']) => after.filter(([entry]) => entry?.to.as === as).length;
  expect([became('completed'), became('released')]).toEqual([completed, released]);
});

it('a released key that was started again by a gateway that died is not reported as settled', async () => {
  const short = { lock: { leaseMs: 300 }, upstream: { connectTimeoutMs: 100 } };
  const { store, requests, file, write, records } = await openIncident(1, short);
  const [request] = requests as [Execution];
  const { merchant, key, recordId } = request;
  const execution = (await executionsIn(file)).get(key);
  const from = write('released.jsonl', [{ merchant, key, execution, as: 'released' }]);
  const release = () => records(['resolve-many', '--from', from, '--reason', 'not in the books']);
  expect(await release()).toMatchObject({ code: 0 });
  expect(await store.start(duplicateOf(request))).toEqual({ kind: 'started' });
  await until(() => store.isOwnerGone(recordId));
  const repeated = await release();
  expect([repeated.code, repeated.stdout]).toEqual([1, expect.stringMatching(/^FAIL .*another execution/)]);
});

it('a key that cannot be read does not keep the others in doubt, and a store that dies is not a loss', async () => {
  const redis = await startRedis();
  const { requests, file, write, records } = await openIncident(300, onRedis(redis));
  const [damaged] = requests as [Execution];
  await redis.admin.set(new Names('oncegate').recordOf(damaged.recordId), 'damaged', 'KEEPTTL');
  const seen = await executionsIn(file);
  // Of the damaged record nothing is known.
  const linesFor = (some: readonly Execution[]) =>
    some.map(({ merchant, key }) => ({ merchant, key, execution: seen.get(key) ?? 'none', as: 'completed' }));
  const many = ['resolve-many', '--reason', 'incident 12', '--from'];

  const few = write('few.jsonl', linesFor(requests.slice(0, 3)));
  for (const more of [['--dry-run'], []]) {
    const { code, stdout } = await records([...many, few, ...more]);
    expect(code).toBe(1);
    expect(stdout).toMatch(
      /^FAIL .*: the record cannot be read: .+\.\n(?:ok .+\n){2}2 .*completed, .*, 1 not resolved\n$/,
    );
  }
  const all = write('all.jsonl', linesFor(requests.slice(1)));
  const bereft = atLine(101, () => void redis.kill());
  const { code, stdout } = await records([...many, all], bereft);
  expect(code).toBe(69);
  expect(stdout).toMatch(
    /\n\d+ completed, 0 released, 2 the same before, \d+ not looked at: run the same command again\n$/,
  );
});
