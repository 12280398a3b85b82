import { randomUUID } from 'node:crypto';
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { withdraw } from '../../support/client.ts';
import { inShell, newFolder } from '../../support/command.ts';
import { type Command, commandsUnder } from '../../support/documents.ts';
import { startRedis } from '../../support/redis-server.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';
import { promtool } from '../observability/support/promtool.ts';

const ROOT = fileURLToPath(new URL('../../../', import.meta.url));
const RUNBOOK = 'docs/operations.md';
const TOKEN = 'a-token-of-the-test-0123456789';

/** Replaces what differs between runs, so that an output can be compared with the one that the document shows. */
const steady = (text: string) =>
  text
    .replaceAll(/\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b/g, 'ID')
    .replaceAll(/\b\d{4}-\d\d-\d\d[T ][\d:.]+Z?/g, 'TIME')
    .replaceAll(/\b[0-9a-f]{8}(?:…|[0-9a-f]{56}\b)/g, 'SCOPE')
    .replaceAll(/^\d+ {2,}/gm, 'COUNT ')
    .replaceAll(/ +$/gm, '')
    .trimEnd();

describe('the commands of docs/operations.md', () => {
  const folder = newFolder();
  const file = join(folder, 'gateway.yaml');
  let stack: Stack;
  beforeAll(async () => {
    stack = await openStack({ admin: { token: TOKEN } });
    writeFileSync(file, stringify(stack.config));
    await withdraw(stack.url, { key: randomUUID() });
    await withdraw(stack.url, { key: 'order-2001', fault: 'execute-then-reset' });
  });
  afterAll(() => stack.close());

  /** Runs a command of the runbook, whose names for files and addresses are those of this test. */
  const run = async (command: Command | undefined, names: Record<string, string> = {}) => {
    if (!command) throw new Error('the runbook has fewer commands');
    const { store } = stack.config;
    const here: Record<string, string> = {
      ...{ FILE: file, 'http://127.0.0.1:8081': stack.adminUrl },
      ...(store?.kind === 'sqlite' ? { '/var/lib/oncegate': String(store.path) } : {}),
      ...{ '/backup': folder },
      ...names,
    };
    const line = Object.entries(here).reduce(
      (line, [name, value]) => line.replaceAll(name, value),
      command.text,
    );
    return inShell(line, { cwd: folder, env: { TOKEN } });
  };

  it('inspect and back up SQLite', async () => {
    const [inspect, backUp, ...others] = commandsUnder(RUNBOOK, 'Inspect and back up SQLite');
    expect(others).toEqual([]);
    expect(steady(await run(inspect))).toBe(steady(inspect?.output ?? ''));
    await run(backUp);
    const copy = await run({
      text: `sqlite3 ${folder}/records.db 'select count(*) from records'`,
      output: '',
    });
    expect(copy).toBe('2\n');
  });

  it('say what a purge would remove', async () => {
    const [purge, ...others] = commandsUnder(RUNBOOK, "Purge a merchant's responses");
    expect(others).toEqual([]);
    const { stdout, code } = await run(purge).catch((error) => error);
    // Something was left.
    expect([code, steady(stdout)]).toEqual([1, steady(purge?.output ?? '')]);
  });

  it('resolve keys in doubt, on the command line and on the admin port', async () => {
    const commands = commandsUnder(RUNBOOK, 'Resolve a key in doubt');
    expect(commands).toHaveLength(6);
    const [list, show, resolve, listed, shown, resolved] = commands;
    expect(steady(await run(list))).toBe(steady(list?.output ?? ''));
    expect(await run(show)).toMatch(/^started at/m);
    writeFileSync(join(folder, 'answer.json'), '{"from":"the books"}');
    await run(resolve);
    const retry = await withdraw(stack.url, { key: 'order-2001' });
    expect([retry.status, retry.json()]).toEqual([201, { from: 'the books' }]);

    await withdraw(stack.url, { key: 'order-2002', fault: 'execute-then-reset' });
    const [{ scope, execution }] = JSON.parse(await run(listed)).records;
    expect(JSON.parse(await run(shown, { SCOPE: scope })).record).toMatchObject({ scope, execution });
    const names = { SCOPE: scope, EXECUTION: execution, BASE64: btoa('{"from":"the port"}') };
    await run(resolved, names);
    const other = await withdraw(stack.url, { key: 'order-2002' });
    expect([other.status, other.json()]).toEqual([201, { from: 'the port' }]);
  });

  it('issue, rotate and revoke secret keys', async () => {
    const commands = commandsUnder(RUNBOOK, 'Rotate secret keys').map(({ text }) => text);
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
    const [command, ...others] = commandsUnder(RUNBOOK, 'Alerts');
    expect(others).toEqual([]);
    const cwd = newFolder();
    copyFileSync(join(ROOT, 'config/prometheus.rules.yaml'), join(cwd, 'prometheus.rules.yaml'));
    await inShell(command?.text ?? '', { cwd });
    const rules = readFileSync(join(cwd, 'prometheus.rules.yaml'), 'utf8');
    expect(rules).toContain('runbook_url: https://YOUR-COPY/docs/operations.md#');
    expect(rules).not.toMatch(/runbook_url: .*runbooks\.example/);
    expect(promtool('check', 'rules', join(cwd, 'prometheus.rules.yaml'))).toBe('');
  });

  it('write the secrets of compose.yaml, and start it', async () => {
    const cwd = newFolder();
    const commands = commandsUnder(RUNBOOK, 'Run everything with compose').map(({ text }) => text);
    const programs = { docker: 'echo "docker $*"' };
    expect(await inShell(commands.join('\n'), { cwd, programs })).toBe('docker compose up --detach --wait\n');
    expect(readFileSync(join(cwd, '.env'), 'utf8')).toMatch(/^REDIS_PASSWORD=[0-9a-f]{48}$/m);
  });

  it('copy the records to another store', async () => {
    const commands = commandsUnder(RUNBOOK, 'Move the records to another store');
    expect(commands).toHaveLength(2);
    const [prepare, copy] = commands;
    const redis = await startRedis();
    writeFileSync(join(folder, 'old.yaml'), stringify(stack.config));
    writeFileSync(join(folder, 'new.yaml'), stringify({ ...stack.config, ...onRedis(redis) }));
    await run(prepare);
    const printed = await run(copy);
    // Rounds are printed only while merchants pay.
    const lines = (copy?.output ?? '').split('\n').filter((line) => line !== '' && !line.startsWith('round'));
    expect(lines).toHaveLength(3);
    for (const line of lines) {
      const [words = ''] = line.split(/(?= sqlite| redis)/);
      expect(printed).toMatch(new RegExp(`^${words.replace(/\d+/, '\\d+')} `, 'm'));
    }
  });
});

it('the commands of grafana/README.md write dashboards for another runbook and log', async () => {
  const [command, ...others] = commandsUnder('grafana/README.md', 'Your runbook and your logs');
  expect(others).toEqual([]);
  const to = newFolder();
  mkdirSync(to, { recursive: true });
  const printed = await inShell((command?.text ?? '').replace('/srv/dashboards', to), { cwd: ROOT });
  expect(printed.match(/^written: /gm)).toHaveLength(4);
  const overview = readFileSync(join(to, 'oncegate-overview.json'), 'utf8');
  expect(overview).toContain('https://wiki.example/oncegate/operations.md');
  expect(overview).not.toContain('runbooks.example');
});
