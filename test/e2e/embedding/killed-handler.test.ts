import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { send } from '../../support/client.ts';
import { run } from '../../support/command.ts';
import { temporaryFolder } from '../../support/config.ts';
import { executionShown } from '../../support/execution.ts';
import { read } from '../../support/repository.ts';
import { begin } from '../../support/tour.ts';
import { until } from '../../support/until.ts';
import { codeOf } from '../../support/wire.ts';

const PROGRAM = fileURLToPath(new URL('handler-program.ts', import.meta.url));
const DOCUMENT = read('docs/embedding.md');

describe('a handler that writes to its own database, in a process that is killed', () => {
  async function start(folder: string, express = 'express') {
    const files = [join(folder, 'store'), join(folder, 'payouts.sqlite')];
    const program = [process.execPath, PROGRAM, ...files, express];
    const [port = ''] = await begin([], { program }).printed(/^\d+$/);
    const pay = (key: string, die = '', path = '/payouts') =>
      send(`http://127.0.0.1:${port}`, {
        method: 'POST',
        path,
        headers: {
          'content-type': 'application/json',
          'idempotency-key': key,
          'x-tenant': 'M-ALPHA',
          ...(die && { 'x-die': die }),
        },
        body: '{"amount":10}',
      });
    return { pay };
  }

  function payouts(folder: string): unknown[] {
    const database = new DatabaseSync(join(folder, 'payouts.sqlite'));
    const rows = database.prepare('SELECT key FROM payouts').all();
    database.close();
    return rows.map(({ key }) => key);
  }

  it('is in doubt, is not paid again, and is resolved with the configuration that docs/embedding.md shows', async () => {
    const folder = temporaryFolder();
    const { pay } = await start(folder);
    expect((await pay('k-1')).status).toBe(201);
    await expect(pay('k-2', 'before')).rejects.toThrow();
    const second = await start(folder);
    expect((await second.pay('k-1')).headers['idempotent-replayed']).toBe('true');
    await expect(second.pay('k-3', 'after')).rejects.toThrow();
    const third = await start(folder, 'express4');
    for (const key of ['k-2', 'k-3']) {
      await until(async () => codeOf(await third.pay(key)) === 'outcome_unknown');
    }
    expect(payouts(folder)).toEqual(['k-1', 'k-3']);

    const [, yaml = ''] = /```yaml records\n(.*?)```/s.exec(DOCUMENT) ?? [];
    writeFileSync(join(folder, 'records.yaml'), yaml.replace('./data', join(folder, 'store')));
    const records = (action: string, ...args: string[]) =>
      run(['records', action, '--config', join(folder, 'records.yaml'), ...args]);
    expect((await records('list', '--in-doubt')).stdout).toMatch(/M-ALPHA +handler +k-3 /);
    writeFileSync(join(folder, 'answer.json'), '{"paid":10}');
    const resolution = ['--as', 'completed', '--reason', 'in the table', '--status', '201'];
    const resolved = await records(
      ...['resolve', '--merchant', 'M-ALPHA', '--key', 'k-3', ...resolution],
      ...['--body', join(folder, 'answer.json')],
      ...(await executionShown(join(folder, 'records.yaml'), 'k-3')),
    );
    expect(resolved).toMatchObject({ code: 0, stderr: '' });
    const retry = await third.pay('k-3');
    expect([retry.status, retry.json()]).toEqual([201, { paid: 10 }]);
    expect(payouts(folder)).toEqual(['k-1', 'k-3']);

    // Express 4 does not catch what an async handler rejects with. What is passed on is answered, and the answer is recorded.
    for (const replayed of [undefined, 'true']) {
      const passedOn = await third.pay('k-4', '', '/passes-on');
      expect([passedOn.status, passedOn.headers['idempotent-replayed']]).toEqual([500, replayed]);
    }
    await expect(third.pay('k-5', '', '/rejects')).rejects.toThrow();
    await until(async () => / k-5 /.test((await records('list', '--in-doubt')).stdout));
  });
});
