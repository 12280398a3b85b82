import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { fileURLToPath } from 'node:url';
import { afterEach, describe, expect, it } from 'vitest';
import { send } from '../../support/client.ts';
import { run } from '../../support/command.ts';
import { temporaryFolder } from '../../support/config.ts';
import { until } from '../../support/until.ts';

const PROGRAM = fileURLToPath(new URL('handler-program.ts', import.meta.url));
const DOCUMENT = readFileSync(new URL('../../../docs/embedding.md', import.meta.url), 'utf8');

const children: ChildProcess[] = [];
afterEach(() => {
  for (const child of children.splice(0)) child.kill('SIGKILL');
});

describe('a handler that writes to its own database, in a process that is killed', () => {
  async function start(folder: string, env: NodeJS.ProcessEnv = {}) {
    const child = spawn(process.execPath, [PROGRAM, join(folder, 'store'), join(folder, 'payouts.sqlite')], {
      stdio: ['ignore', 'pipe', 'inherit'],
      env: { ...process.env, ...env },
    });
    children.push(child);
    let port = '';
    for await (const line of child.stdout) {
      port = String(line).trim();
      break;
    }
    const pay = (key: string, die = '') =>
      send(`http://127.0.0.1:${port}`, {
        method: 'POST',
        path: '/payouts',
        headers: {
          'content-type': 'application/json',
          'idempotency-key': key,
          'x-tenant': 'M-ALPHA',
          ...(die && { 'x-die': die }),
        },
        body: '{"amount":10}',
      });
    return { child, pay };
  }

  function payouts(folder: string): unknown[] {
    const database = new DatabaseSync(join(folder, 'payouts.sqlite'));
    const rows = database.prepare('SELECT key FROM payouts').all();
    database.close();
    return rows.map(({ key }) => key);
  }

  it.for(['before', 'after'])('is in doubt, and is not paid again (killed %s it has paid)', async (die) => {
    const folder = temporaryFolder();
    const { child, pay } = await start(folder);
    expect((await pay('k-1')).status).toBe(201);
    await expect(pay('k-2', die)).rejects.toThrow();
    if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
    const next = await start(folder);
    expect((await next.pay('k-1')).headers['idempotent-replayed']).toBe('true');
    const retry = await until(async () => {
      const answer = await next.pay('k-2');
      return answer.json<{ error: { code: string } }>().error.code === 'outcome_unknown' ? answer : undefined;
    });
    expect(retry.status).toBe(409);
    expect(payouts(folder)).toEqual(die === 'after' ? ['k-1', 'k-2'] : ['k-1']);
  });

  it('is resolved by an operator, with the configuration that docs/embedding.md shows', async () => {
    const folder = temporaryFolder();
    const first = await start(folder);
    await expect(first.pay('k-1', 'after')).rejects.toThrow();
    const { pay } = await start(folder);
    await until(async () => (await pay('k-1')).status === 409);
    const [, yaml = ''] = /```yaml records\n(.*?)```/s.exec(DOCUMENT) ?? [];
    writeFileSync(join(folder, 'records.yaml'), yaml.replace('./data', join(folder, 'store')));
    const records = (action: string, ...args: string[]) =>
      run(['records', action, '--config', join(folder, 'records.yaml'), ...args]);
    expect((await records('list', '--in-doubt')).stdout).toMatch(/M-ALPHA +handler +k-1 /);
    const response = ['--status', '201', '--body', join(folder, 'answer.json')];
    writeFileSync(join(folder, 'answer.json'), '{"paid":10}');
    const of = ['--merchant', 'M-ALPHA', '--key', 'k-1'];
    expect(
      await records('resolve', ...of, '--as', 'completed', '--reason', 'in the table', ...response),
    ).toMatchObject({ code: 0, stderr: '' });
    const retry = await pay('k-1');
    expect([retry.status, retry.json()]).toEqual([201, { paid: 10 }]);
    expect(payouts(folder)).toEqual(['k-1']);
  });

  it('is decided by a lookup in that database', async () => {
    const folder = temporaryFolder();
    const first = await start(folder, { LOOKUP: '1' });
    await expect(first.pay('k-1', 'after')).rejects.toThrow();
    const second = await start(folder, { LOOKUP: '1' });
    await expect(second.pay('k-2', 'before')).rejects.toThrow();
    const { pay } = await start(folder, { LOOKUP: '1' });
    for (const key of ['k-1', 'k-2']) {
      const paid = await until(async () => {
        const answer = await pay(key);
        return answer.status === 201 ? answer : undefined;
      });
      expect(paid.json()).toEqual({ paid: 10 });
    }
    expect(payouts(folder)).toEqual(['k-1', 'k-2']);
  });
});
