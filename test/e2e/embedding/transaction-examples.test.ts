/** Runs the examples of docs/transactions.md. */
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { expect, it, onTestFinished } from 'vitest';
import { send } from '../../support/client.ts';
import { temporaryFolder } from '../../support/config.ts';
import { startPostgres } from '../../support/postgres-server.ts';
import { ROOT, read } from '../../support/repository.ts';
import { begin } from '../../support/tour.ts';

const PAGE = read('docs/transactions.md');
/** The language of those that are no whole modules is spelt out: the compiler checks the others. */
const exampleOf = (name: string): string =>
  new RegExp(`\`\`\`(?:js|javascript) ${name}\\n(.*?)\`\`\``, 's').exec(PAGE)?.[1] ?? '';

const POOL = `import pg from 'pg';\nconst pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });\n`;

/** The example with the package of this repository, a merchant that is known, and the port that it listens on. */
const runnable = (example: string, own = ''): string =>
  (own && POOL)
    .concat(example)
    .replace("'oncegate'", `'${join(ROOT, 'src/index.ts')}'`)
    .replace(
      /const auth = .*;/,
      "const auth = (req, _res, next) => { req.merchant = { code: 'M-1' }; next(); };",
    )
    .replace(
      /app\.listen\(.*/,
      `${own.replaceAll("'/payouts'", "'/own'")}
      const server = app.listen(0, '127.0.0.1', () => console.log(server.address().port));`,
    );

it('the examples pay once for a key, and store a refusal that the function returns', async () => {
  const { url, admin } = await startPostgres({ fsync: 'off' });
  await admin.query(`CREATE TABLE accounts (merchant text, balance numeric); INSERT INTO accounts VALUES ('M-1', 15);
    CREATE TABLE payouts (merchant text, key text, amount numeric)`);
  const folder = join(ROOT, 'node_modules/.cache/examples');
  mkdirSync(folder, { recursive: true });
  onTestFinished(() => rmSync(folder, { recursive: true }));
  const file = join(folder, 'transactions.mjs');
  writeFileSync(file, runnable(exampleOf('transaction'), exampleOf('own')));
  const running = begin([], { program: [process.execPath, file], env: { DATABASE_URL: url } });
  const [port = ''] = await running.printed(/^\d+$/);
  const post = (path: string, key: string) =>
    send(`http://127.0.0.1:${port}`, {
      method: 'POST',
      path,
      headers: { 'idempotency-key': key, 'content-type': 'application/json' },
      body: '{"amount":10}',
    });
  const statuses = [];
  for (const [path, key] of [
    ['/payouts', 'a'],
    ['/payouts', 'a'],
    ['/payouts', 'b'],
    ['/payouts', 'b'],
    ['/own', 'c'],
    ['/own', 'c'],
  ] as const) {
    const { status, headers } = await post(path, key);
    statuses.push(`${status}${headers['idempotent-replayed'] ? ' again' : ''}`);
  }
  expect(statuses).toEqual(['201', '201 again', '409', '409 again', '201', '201 again']);
  expect((await admin.query('SELECT key FROM payouts ORDER BY key')).rows).toEqual([
    { key: 'a' },
    { key: 'c' },
  ]);
  expect((await admin.query('SELECT balance::int FROM accounts')).rows).toEqual([{ balance: 5 }]);
});

it('the example on SQLite pays once for a key', async () => {
  const folder = temporaryFolder();
  const file = join(folder, 'sqlite.mjs');
  const example = runnable(exampleOf('sqlite')).replace(
    "from 'express'",
    `from '${import.meta.resolve('express')}'`,
  );
  writeFileSync(file, example);
  const running = begin([], { program: [process.execPath, file], cwd: folder });
  const [port = ''] = await running.printed(/^\d+$/);
  const headers = { 'idempotency-key': 'a', 'content-type': 'application/json' };
  const post = () =>
    send(`http://127.0.0.1:${port}`, { method: 'POST', path: '/payouts', headers, body: '{"amount":10}' });
  const [first, retry] = [await post(), await post()];
  expect([first.status, retry.status, retry.headers['idempotent-replayed']]).toEqual([201, 201, 'true']);
  using database = new DatabaseSync(join(folder, 'payouts.sqlite'));
  expect(database.prepare('SELECT key, amount FROM payouts').all()).toEqual([{ key: 'a', amount: 10 }]);
});
