import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { afterAll, describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import type { AuditRecord, Execution, Store } from '../../../src/idempotency/store.ts';
import { openStore } from '../../../src/idempotency/stores/open-store.ts';
import { systemClock } from '../../../src/kernel/clock.ts';
import { createSandbox } from '../../../src/sandbox/sandbox.ts';
import { withdraw } from '../../support/client.ts';
import { FAST_START, inShell, newFolder, run } from '../../support/command.ts';
import { parsedConfig, testConfig } from '../../support/config.ts';
import { commandsUnder } from '../../support/documents.ts';
import { isStopped } from '../../support/process-life.ts';
import { startRedis } from '../../support/redis-server.ts';
import { duplicateOf, newRequest, paid } from '../../support/requests.ts';
import { MAIN, spawnGateway, track } from '../../support/spawn.ts';
import { onRedis, storeKinds, storeSections } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

const LEASE_MS = 3000;
const KEYS = 1000;

const closing: (() => Promise<unknown>)[] = [];
afterAll(() => Promise.all(closing.map((close) => close())));

/** Runs the commands of the runbook in order. Returns what each printed, and whether it failed. */
async function runRunbook(configFile: string, cwd: string): Promise<{ stdout: string; failed: boolean }[]> {
  const ended: { stdout: string; failed: boolean }[] = [];
  for (const { text } of commandsUnder('docs/operations.md', 'After an incident: many keys at once'))
    ended.push(
      await inShell(text.replaceAll('FILE', configFile), { cwd }).then(
        (stdout) => ({ stdout, failed: false }),
        ({ stdout }) => ({ stdout, failed: true }),
      ),
    );
  return ended;
}

/** As gateways do that do not get an answer. A few at a time: on a busy machine, the store must answer within its time limit. */
async function leaveInDoubt(store: Store, requests: readonly Execution[]): Promise<void> {
  for (let from = 0; from < requests.length; from += 50)
    await Promise.all(
      requests.slice(from, from + 50).map(async (request) => {
        await store.start(request);
        await store.markInDoubt(request);
      }),
    );
}

const STOPPER = new URL('../../support/stop-before-line.ts', import.meta.url).href;

/** A command that stops itself (SIGSTOP) right before it writes that line of its standard output. */
function stoppingBeforeLine(line: number, args: string[]) {
  const env = { ...FAST_START, NODE_OPTIONS: `--import=${STOPPER}`, STOP_BEFORE_LINE: `${line}` };
  const child = track(
    spawn(process.execPath, [MAIN, ...args], {
      env: { ...process.env, ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
    }),
  );
  const [out, err] = [child.stdout, child.stderr] as NodeJS.ReadableStream[];
  if (!out || !err) throw new Error('the child has no pipes');
  const ended = Promise.all([once(child, 'exit'), text(out), text(err)]);
  return {
    pid: child.pid as number,
    kill: (signal: NodeJS.Signals) => child.kill(signal),
    ended: ended.then(([[code], stdout, stderr]) => ({ code: code as number | null, stdout, stderr })),
  };
}

const linesOf = (path: string) => readFileSync(path, 'utf8').trimEnd().split('\n');

describe.concurrent.each(storeKinds)('after an incident on %s', (kind) => {
  it('the commands of the runbook resolve every key as the books have it', async () => {
    const sandbox = await createSandbox({ port: 0 });
    closing.push(() => sandbox.close());
    const more = { ...(await storeSections(kind)), lock: { leaseMs: LEASE_MS } };
    const [input, folder] = [testConfig(newFolder(), sandbox.url, more), newFolder()];
    const dying = await spawnGateway(input, FAST_START, folder);
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
    const gateway = await spawnGateway(input, FAST_START, folder);
    closing.push(() => gateway.end('SIGKILL'));

    const all = [...executed, ...unpaid, ...killed];
    const inDoubt = async () => {
      const { stdout } = await run(['records', 'list', '--in-doubt', '--json', '--config', gateway.file]);
      return (JSON.parse(stdout) as { records: unknown[] }).records.length;
    };
    await until(async () => (await inDoubt()) === all.length);
    // An owner that pays twice would be seen here: the books have each key once.
    const books = all.filter((key) => sandbox.ledger.payouts({ key }) === 1);
    const entries = books.map((key) => ({
      ...{ merchant: 'M-ALPHA', key, as: 'completed', status: 201, body: `{"key":"${key}"}` },
      headers: ['Content-Type', 'application/json'],
    }));
    writeFileSync(join(folder, 'books.jsonl'), entries.map((line) => `${JSON.stringify(line)}\n`).join(''));

    const ended = await runRunbook(gateway.file, folder);
    expect(ended.filter(({ failed }) => failed)).toEqual([]);
    expect(ended.map(({ stdout }) => stdout.trimEnd().split('\n').at(-1))).toEqual([
      ...['', `${books.length} would be completed, 0 would be released`, ''],
      ...[`${books.length} completed, 0 released`, ''],
      `0 would be completed, ${unpaid.length} would be released`,
      `0 completed, ${unpaid.length} released`,
    ]);
    expect(linesOf(join(folder, 'resolved.txt')).at(-1)).toBe(`${books.length} completed, 0 released`);
    expect(await inDoubt()).toBe(0);

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
  }, 60_000);

  it(`${KEYS} keys are resolved once each by a run that is interrupted, and repeated`, async () => {
    const input = testConfig(newFolder(), 'http://127.0.0.1:1', await storeSections(kind));
    const folder = newFolder();
    const file = join(folder, 'gateway.yaml');
    writeFileSync(file, stringify(input));
    const store = await openStore(parsedConfig(input), systemClock);
    closing.push(() => store.close());
    const requests = Array.from({ length: KEYS }, () => newRequest());
    await leaveInDoubt(store, requests);
    const records = (...args: string[]) => run(['records', ...args, '--config', file], { withinMs: 60_000 });
    const short = await records('list', '--in-doubt', '--lines');
    expect(short.stderr).toBe('oncegate: there may be more than --limit 100 records\n');
    const listed = await records('list', '--in-doubt', '--lines', '--limit', '100000');
    expect(listed.stderr).toBe('');
    const from = join(folder, 'keys.jsonl');
    // Every third key is not in the books.
    const lines = listed.stdout
      .trimEnd()
      .split('\n')
      .map((line, i) => line.replace(/\}$/, `,"as":"${i % 3 === 0 ? 'released' : 'completed'}"}`));
    expect(lines).toHaveLength(KEYS);
    writeFileSync(from, `\uFEFF${lines.join('\r\n')}\r\n`);
    const [released, completed] = [Math.ceil(KEYS / 3), Math.floor((2 * KEYS) / 3)];
    const many = ['resolve-many', '--from', from, '--reason', 'incident 12', '--by', 'ada'];

    const tried = await records(...many, '--dry-run');
    expect(tried.code).toBe(0);
    expect(tried.stdout).toMatch(
      new RegExp(`\\n${completed} would be completed, ${released} would be released\\n$`),
    );
    expect(tried.stderr).toBe(
      [1, 2, 3, 4, 5, 6, 7, 8, 9].map((n) => `oncegate: ${n}00 of ${KEYS} keys\n`).join(''),
    );

    const interrupted = stoppingBeforeLine(100, ['records', ...many, '--config', file]);
    await until(() => isStopped(interrupted.pid));
    // SIGKILL between a write and its line on standard output is the worst that can happen.
    const signal = kind === 'sqlite' ? 'SIGINT' : 'SIGKILL';
    interrupted.kill(signal);
    interrupted.kill('SIGCONT');
    const { code, stdout, stderr } = await interrupted.ended;
    const first = stdout.match(/^ok {3}/gm)?.length ?? 0;
    if (signal === 'SIGKILL') {
      // The progress counts no key whose line is missing.
      expect([first, stderr]).toEqual([99, '']);
    } else {
      expect(first).toBeGreaterThanOrEqual(100);
      expect(first).toBeLessThan(KEYS);
      expect(code).toBe(130);
      expect(stdout).toMatch(
        new RegExp(`released, ${KEYS - first} not looked at: run the same command again\n$`),
      );
    }
    // A merchant retries a released key before the command is repeated, so it is executed again.
    const trails = () => Promise.all(requests.map(({ scope }) => store.audit(scope)));
    const releasedAt = (await trails()).findIndex(([entry]) => entry?.to.as === 'released');
    const retry = duplicateOf(requests[releasedAt] as Execution);
    expect(await store.start(retry)).toEqual({ kind: 'started' });
    expect(await store.complete(retry, paid())).toBe('ok');
    const repeated = await records(...many);
    expect(repeated.code).toBe(0);
    expect(repeated.stdout.match(/^FAIL/gm)).toBeNull();
    const same = repeated.stdout.match(/^same /gm)?.length ?? 0;
    // The process that was killed had resolved one key more than it said.
    expect(same).toBe(signal === 'SIGKILL' ? first + 1 : first);
    expect((await records('list', '--in-doubt')).stdout).toBe('Nothing is in doubt.\n');
    const third = await records(...many);
    expect(third.stdout).toMatch(new RegExp(`\n0 completed, 0 released, ${KEYS} the same before\n$`));

    const after = await trails();
    expect(after.map((trail) => trail.length)).toEqual(Array(KEYS).fill(1));
    const became = (as: AuditRecord['to']['as']) => after.filter(([entry]) => entry?.to.as === as).length;
    expect([became('completed'), became('released')]).toEqual([completed, released]);
  }, 90_000);
});

it('the commands of the runbook release nothing while a key that the books have is still in doubt', async () => {
  const input = testConfig(newFolder(), 'http://127.0.0.1:1', await storeSections('sqlite'));
  const folder = newFolder();
  const file = join(folder, 'gateway.yaml');
  writeFileSync(file, stringify(input));
  const store = await openStore(parsedConfig(input), systemClock);
  closing.push(() => store.close());
  const requests = [newRequest(), newRequest()];
  await leaveInDoubt(store, requests);
  const [{ merchant, key }] = requests as [Execution];
  // The books have this payout, but the gateway cannot store so large a response.
  const line = { merchant, key, as: 'completed', status: 201, body: 'x'.repeat(2_000_000) };
  writeFileSync(join(folder, 'books.jsonl'), `${JSON.stringify(line)}\n`);

  const failed = (await runRunbook(file, folder)).filter((ended) => ended.failed);
  expect(failed[0]?.stdout).toMatch(/^FAIL .+: The body is larger than /);
  const states = await Promise.all(requests.map(async ({ scope }) => (await store.get(scope))?.state));
  expect(states).toEqual(['in_doubt', 'in_doubt']);
});

it('a key that cannot be read does not keep the others in doubt, and a store that dies is not a loss', async () => {
  const redis = await startRedis();
  const input = testConfig(newFolder(), 'http://127.0.0.1:1', onRedis(redis));
  const folder = newFolder();
  const file = join(folder, 'gateway.yaml');
  writeFileSync(file, stringify(input));
  const store = await openStore(parsedConfig(input), systemClock);
  closing.push(() => store.close());
  const requests = Array.from({ length: 300 }, () => newRequest());
  await leaveInDoubt(store, requests);
  const [damaged] = requests as [Execution];
  const [key = ''] = await redis.admin.keys(`*{${damaged.scope}}`);
  await redis.admin.set(key, 'damaged', 'KEEPTTL');
  const linesFor = (some: readonly Execution[]) =>
    some.map(({ merchant, key }) => `${JSON.stringify({ merchant, key, as: 'completed' })}\n`).join('');
  const many = ['records', 'resolve-many', '--reason', 'incident 12', '--config', file, '--from'];

  writeFileSync(join(folder, 'few.jsonl'), linesFor(requests.slice(0, 3)));
  for (const more of [['--dry-run'], []]) {
    const few = await run([...many, join(folder, 'few.jsonl'), ...more]);
    expect(few.code).toBe(1);
    expect(few.stdout).toMatch(
      /^FAIL .*: the record cannot be read: .+\.\n(?:ok .+\n){2}2 .*completed, .*, 1 not resolved\n$/,
    );
  }

  const listed = `{"scope":"${damaged.scope}","state":"unreadable","reason":"x","as":"completed"}\n`;
  const other = `{"scope":"${'0'.repeat(64)}","merchant":"M-1","key":"k","as":"completed"}\n`;
  writeFileSync(join(folder, 'wrong.jsonl'), listed + other);
  const wrong = await run([...many, join(folder, 'wrong.jsonl')]);
  expect([wrong.code, wrong.stdout]).toEqual([64, '']);
  expect(wrong.stderr).toMatch(
    /line 1: its record cannot be read.+\n.+line 2: scope is not that of merchant and key\n$/,
  );

  writeFileSync(join(folder, 'all.jsonl'), linesFor(requests.slice(1)));
  const bereft = stoppingBeforeLine(101, [...many, join(folder, 'all.jsonl')]);
  await until(() => isStopped(bereft.pid));
  await redis.kill();
  bereft.kill('SIGCONT');
  const { code, stdout } = await bereft.ended;
  expect(code).toBe(69);
  expect(stdout).toMatch(
    /\n\d+ completed, 0 released, 2 the same before, \d+ not looked at: run the same command again\n$/,
  );
});
