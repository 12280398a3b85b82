import { execFileSync, spawnSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { copyFileSync, globSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { withdraw } from '../../support/client.ts';
import { inShell, newFolder, run } from '../../support/command.ts';
import { configFile, writeKeys } from '../../support/config.ts';
import { type Command, commandsUnder, commandsWithin, steady } from '../../support/documents.ts';
import { promtool } from '../../support/prometheus.ts';
import { startRedis } from '../../support/redis-server.ts';
import { ROOT, read } from '../../support/repository.ts';
import { stackForFile } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';

const OPERATIONS = 'docs/operations.md';
const RUNBOOK = 'docs/runbook';
const TOKEN = 'a-token-of-the-test-0123456789';
/** The changelog has the commands of earlier versions. */
const DOCUMENTS = globSync(['*.md', 'docs/**/*.md', 'grafana/*.md', 'bench/**/*.md', 'test/*.md'], {
  cwd: ROOT,
  exclude: (path) => path.includes('node_modules'),
}).filter((path) => path !== 'CHANGELOG.md');
const COMMANDS = new Set(DOCUMENTS.flatMap((path) => commandsWithin(path)));

it('commands of oncegate in the documents have actions and options that there are', async () => {
  const more = globSync(['config/**/*.yaml', 'deploy/**/*.*'], { cwd: ROOT });
  const texts = [...DOCUMENTS, ...more].flatMap((path) =>
    [...read(path).matchAll(/`(oncegate [^`]+)`|^# {2,}(oncegate [\w -]+)/gm)].map(
      ([, inline, comment]) => inline ?? comment ?? '',
    ),
  );
  const commands = [...new Set(texts)].map((text) => {
    const [, name = '', action] = /^oncegate ([a-z]+)(?: ([a-z][a-z-]*))?/.exec(text) ?? [];
    return { text, name, action, options: text.match(/--[a-z-]+/g) ?? [] };
  });
  const names = [...new Set(commands.map(({ name }) => name))];
  const helps = new Map<string, string>();
  for (const name of names) {
    const { code, stdout } = await run([...(name ? [name] : []), '--help']);
    expect([name, code]).toEqual([name, 0]);
    helps.set(name, stdout);
  }
  expect(names).toContain('records');
  const wrong = commands.filter(({ name, action, options }) => {
    const help = helps.get(name) ?? '';
    const isAction = action === undefined || help.includes(`oncegate ${name} ${action}`);
    return !isAction || options.some((option) => option !== '--help' && !help.includes(option));
  });
  expect(wrong).toEqual([]);
});

/** Commands within the sentences of documents, and what they print. */
const PRINTS: Record<string, RegExp> = {
  'curl -s http://127.0.0.1:8081/readyz': /^\{"status":"ready"/,
  'node --version': /^v24\./,
  'npm run --silent oncegate --': /^Every command takes --help/m,
  'npm run oncegate -- check --config FILE': /^ok {3}store: sqlite/m,
  'openssl rand -base64 32': /^[\w+/]{43}=\n$/,
  'oncegate --version': /^\d+\.\d+\.\d+$/m,
  'oncegate check --config FILE --offline': /^ok /m,
  'oncegate check --config FILE': /^ok {3}store: sqlite/m,
  'oncegate config print --config FILE': /^ {2}pepper: /m,
  'oncegate keys list --config FILE': /^M-ALPHA +alpha-1 /m,
  'oncegate keys revoke --config FILE --merchant M --id ID': /^$/,
  'oncegate records list --in-doubt --config FILE': /withdraw/,
  'redis-cli config set appendonly yes': /^OK$/m,
  'redis-cli info replication': /^role:master/m,
};

const auth = {
  pepper: 'a-pepper-of-some-length',
  keys: { source: 'file' as const, path: writeKeys(newFolder()) },
};
const stack = await stackForFile({ admin: { token: TOKEN }, auth });
const folder = newFolder();
const file = configFile(stack.config, folder);
const { port } = await startRedis();
const redisCli = execFileSync('sh', ['-c', 'command -v redis-cli'], { encoding: 'utf8' }).trimEnd();
const programs = { 'redis-cli': `exec ${redisCli} -p ${port} "$@"` };
await withdraw(stack.url, { key: randomUUID() });
await withdraw(stack.url, { key: 'order-2001', fault: 'execute-then-reset' });

describe('the commands of the documents', () => {
  /** Runs a command, whose names for files and addresses are those of this test. */
  const runHere = async (
    command?: Pick<Command, 'text'>,
    names: Record<string, string> = {},
    cwd = folder,
  ) => {
    if (!command) throw new Error('the document has fewer commands');
    const { store } = stack.config;
    const here: Record<string, string> = {
      ...{ FILE: file, 'http://127.0.0.1:8081': stack.adminUrl },
      ...(store?.kind === 'sqlite' ? { '/var/lib/oncegate': String(store.path) } : {}),
      ...{ '/backup': folder },
      ...names,
    };
    const line = Object.entries(here).reduce(
      (text, [name, value]) => text.replaceAll(name, value),
      command.text,
    );
    return inShell(line, { cwd, env: { TOKEN }, programs });
  };

  it.each(Object.entries(PRINTS))('within a sentence print what it says: %s', async (text, printed) => {
    expect(COMMANDS).toContain(text);
    const names = { '--merchant M --id ID': '--merchant M-BRAVO --id bravo-1' };
    expect(await runHere({ text }, names, ROOT)).toMatch(printed);
  });

  it('inspect and back up SQLite', async () => {
    const [inspect, backUp, ...others] = commandsUnder(OPERATIONS, 'Inspect and back up SQLite');
    expect(others).toEqual([]);
    expect(steady(await runHere(inspect))).toBe(steady(inspect?.output ?? ''));
    await runHere(backUp);
    const copy = await runHere({ text: `sqlite3 ${folder}/records.db 'select count(*) from records'` });
    expect(copy).toBe('2\n');
  });

  it('resolve keys in doubt, on the command line and on the admin port', async () => {
    const commands = commandsUnder(`${RUNBOOK}/resolve-a-key-in-doubt.md`, 'Resolve a key in doubt');
    expect(commands).toHaveLength(3);
    const [list, show, resolve] = commands;
    const requests = commandsUnder(OPERATIONS, 'The admin API');
    expect(requests).toHaveLength(3);
    const [listed, shown, resolved] = requests;
    expect(steady(await runHere(list))).toBe(steady(list?.output ?? ''));
    const record = await runHere(show);
    expect(record).toMatch(/^started at/m);
    writeFileSync(join(folder, 'answer.json'), '{"from":"the books"}');
    await runHere(resolve, { EXECUTION: /^execution +(\w+)$/m.exec(record)?.[1] ?? 'none' });
    const retry = await withdraw(stack.url, { key: 'order-2001' });
    expect([retry.status, retry.json()]).toEqual([201, { from: 'the books' }]);

    await withdraw(stack.url, { key: 'order-2002', fault: 'execute-then-reset' });
    const [{ recordId, requestId, execution }] = JSON.parse(await runHere(listed)).records;
    expect(JSON.parse(await runHere(shown, { RECORD_ID: recordId })).record).toMatchObject({
      recordId,
      execution,
    });
    const [byDigits, byRequest, ...others] = commandsUnder(
      `${RUNBOOK}/resolve-a-key-in-doubt.md`,
      'From a line of the log',
    );
    expect(others).toEqual([]);
    const [first, second] = [
      await runHere(byDigits, { '1d9f077f52c7a86d': recordId.slice(0, 16) }),
      await runHere(byRequest, { 'bf67f6e5-52c7-4738-986d-95d433188dae': requestId }),
    ];
    // It is computed from the time that is left, so its last millisecond may differ.
    const withoutExpiry = (shownText: string) => shownText.replace(/^expires at .*$/m, '');
    expect(withoutExpiry(second)).toBe(withoutExpiry(first));
    expect(first).toContain(`\nrecordId    ${recordId}\n`);
    const names = { RECORD_ID: recordId, EXECUTION: execution, BASE64: btoa('{"from":"the port"}') };
    await runHere(resolved, names);
    const other = await withdraw(stack.url, { key: 'order-2002' });
    expect([other.status, other.json()]).toEqual([201, { from: 'the port' }]);
  });

  it('issue, rotate and revoke secret keys', async () => {
    const commands = commandsUnder(OPERATIONS, 'Rotate secret keys').map(({ text }) => text);
    const today = new Date().toISOString().slice(0, 10);
    const lines = commands
      .join('\n')
      .replace('ONCEGATE_PEPPER=...', 'ONCEGATE_PEPPER=a-pepper-of-some-length')
      .replace(/--id \d{4}-\d\d-\d\d/, `--id ${today}`);
    const printed = await inShell(lines, { cwd: newFolder() });
    expect(printed.match(/^og_live_\w+$/gm)).toHaveLength(2);
    expect(printed).toMatch(new RegExp(`M-1001 +${today} +revoked`));
  });

  it('put the address of a runbook into the alerts', async () => {
    const [command, ...others] = commandsUnder(`${RUNBOOK}/README.md`, 'By alert');
    expect(others).toEqual([]);
    const cwd = newFolder();
    copyFileSync(join(ROOT, 'config/prometheus.rules.yaml'), join(cwd, 'prometheus.rules.yaml'));
    await inShell(command?.text ?? '', { cwd });
    const rules = readFileSync(join(cwd, 'prometheus.rules.yaml'), 'utf8');
    expect(rules).toContain('runbook_url: https://YOUR-COPY/docs/runbook/OncegateInDoubt.md');
    expect(rules).not.toMatch(/runbook_url: .*runbooks\.example/);
    expect(promtool('check', 'rules', join(cwd, 'prometheus.rules.yaml'))).toBe('');
  });

  it('write the secrets of compose.yaml, and start it', async () => {
    const cwd = newFolder();
    const commands = commandsUnder(OPERATIONS, 'Run everything with compose').map(({ text }) => text);
    const programs = { docker: 'echo "docker $*"' };
    expect(await inShell(commands.join('\n'), { cwd, programs })).toBe('docker compose up --detach --wait\n');
    expect(readFileSync(join(cwd, '.env'), 'utf8')).toMatch(/^REDIS_PASSWORD=[0-9a-f]{48}$/m);
  });

  it('accept a store that was restored', async () => {
    const [command, ...others] = commandsUnder(
      `${RUNBOOK}/after-a-backup-was-restored.md`,
      'After a backup was restored',
    );
    expect(others).toEqual([]);
    const noted = { format: 1, mark: { id: '0'.repeat(32), count: 1 }, seenAt: new Date().toISOString() };
    writeFileSync(join(folder, 'restored.yaml'), stringify(stack.config));
    writeFileSync(join(folder, 'restored.store-identity.json'), JSON.stringify(noted));
    const printed = await runHere(command, { 'gateway.yaml': join(folder, 'restored.yaml') });
    expect(printed).toMatch(/^accepted: the store is .* can be paid again\n$/);
  });

  it('copy the records to another store', async () => {
    const commands = commandsUnder(OPERATIONS, 'Move the records to another store');
    expect(commands).toHaveLength(1);
    const [copy] = commands;
    const redis = await startRedis();
    writeFileSync(join(folder, 'old.yaml'), stringify(stack.config));
    writeFileSync(join(folder, 'new.yaml'), stringify({ ...stack.config, ...onRedis(redis) }));
    const printed = await runHere({ text: `${copy?.text} 2>&1` });
    const lines = (copy?.output ?? '').split('\n').filter((line) => line !== '');
    // These lines are printed only if it takes long.
    const always = lines.filter((line) => !/^(?:waiting for|copied) /.test(line));
    expect(always).toHaveLength(9);
    for (const line of always)
      expect(printed).toMatch(new RegExp(`^${line.replace(/ +\d+$/, ' +\\d+')}$`, 'm'));
  });
});

it('the commands of grafana/README.md write dashboards for another runbook and log', async () => {
  const [command, ...others] = commandsUnder('grafana/README.md', 'Your runbook and your logs');
  expect(others).toEqual([]);
  const to = newFolder();
  const printed = await inShell((command?.text ?? '').replace('/srv/dashboards', to), { cwd: ROOT });
  expect(printed.match(/^written: /gm)).toHaveLength(2);
  const overview = readFileSync(join(to, 'oncegate-overview.json'), 'utf8');
  expect(overview).toContain('https://wiki.example/oncegate/docs');
  expect(overview).not.toContain('runbooks.example');
});

/** Scripts that run for minutes: they read their options here, with `--help` behind them. */
const LONG = [...COMMANDS].filter((text) => /^npm run (?:bench|chaos)\b/.test(text));

it.each(LONG)('%s has options that there are', (command) => {
  const [, script = '', options = ''] = /^npm run (\w+)(?: -- (.+))?$/.exec(command) ?? [];
  const [program = '', ...args] = (JSON.parse(read('package.json')).scripts[script] ?? '').split(' ');
  expect(program).toBe('node');
  const { status, stdout, stderr } = spawnSync(
    process.execPath,
    [...args, ...options.split(' ').filter((part) => part !== ''), '--help'],
    { cwd: ROOT, encoding: 'utf8' },
  );
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  for (const [option] of options.matchAll(/--[a-z-]+/g)) expect(stdout).toContain(option);
});
