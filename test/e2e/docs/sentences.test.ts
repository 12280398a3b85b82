import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, globSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { beforeAll, describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { withdraw } from '../../support/client.ts';
import { inShell, newFolder } from '../../support/command.ts';
import { writeKeys } from '../../support/config.ts';
import { commandsWithin } from '../../support/documents.ts';
import { startRedis } from '../../support/redis-server.ts';
import { openStack, type Stack } from '../../support/stack.ts';

const ROOT = fileURLToPath(new URL('../../../', import.meta.url));
const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');
const scripts: Record<string, string> = JSON.parse(read('package.json')).scripts;

/** Commands that this test runs as they are, and what they print. */
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
  'oncegate keys issue --config FILE --merchant M-0001': /^og_live_\w+$/m,
  'oncegate keys list --config FILE': /^M-ALPHA +alpha-1 /m,
  'oncegate keys revoke --config FILE --merchant M --id ID': /^$/,
  'oncegate records list --in-doubt --config FILE': /withdraw/,
  'redis-cli config set appendonly yes': /^OK$/m,
  'redis-cli info replication': /^role:master/m,
};

/** Scripts that run for minutes. Their options are read here, with `--help` behind them. */
const TAKES_OPTIONS = ['npm run bench', 'npm run chaos', 'npm run soak'];

/** Commands that another test runs, or whose result it compares, by their beginning; with what that test has. */
const RUN_ELSEWHERE: Record<string, [test: string, has: string]> = {
  'node dist/main.js': ['test/e2e/process/built-start.test.ts', 'dist/main.js'],
  'node grafana/generate.ts': ['test/e2e/docs/operations.test.ts', 'grafana/README.md'],
  'node scripts/config-schema.ts': ['test/unit/config-schema.test.ts', 'scripts/config-schema.ts'],
  'node scripts/log-schema.ts': ['test/unit/log-events.test.ts', 'scripts/log-schema.ts'],
  'node scripts/metrics.ts': ['test/unit/metrics-catalogue.test.ts', 'scripts/metrics.ts'],
  'node scripts/openapi.ts': ['test/e2e/openapi/every-answer.test.ts', 'scripts/openapi.ts'],
  'node scripts/rules.ts': ['test/unit/documents.test.ts', 'scripts/rules.ts'],
  'npm run api': ['test/unit/api-reference.test.ts', 'npm run api'],
  'npm run build': ['test/e2e/process/built-start.test.ts', 'scripts/build.ts'],
  'npm run guards': ['test/unit/guards.test.ts', 'npm run guards'],
  'npm run package': ['test/e2e/embedding/tarball.test.ts', 'scripts/package.ts'],
  'npm run pages': ['test/unit/console-bundle.test.ts', 'scripts/pages.ts'],
  'npm start': ['test/e2e/docs/readme.test.ts', 'npm start'],
  // Its actions and options are compared with the help.
  'oncegate ': ['test/e2e/docs/commands.test.ts', '--help'],
};

/** Commands that cannot run in a test, by their beginning, and why. */
const NOT_RUN: Record<string, string> = {
  'docker ': 'needs a container engine',
  'git tag': 'needs a key for signatures',
  'journalctl ': 'needs a service of systemd',
  'kill -9': 'has no process; many tests send this signal',
  'node --trace-gc': 'has no program',
  'node bench/': 'measures for minutes',
  'node src/main.ts': 'is about a checkout without its bundled pages',
  'npm ci': 'changes the checkout',
  'npm install': 'changes the checkout',
  'npm run lint': 'runs beside the tests',
  'npm run mutants': 'runs the tests many times',
  'npm test': 'runs this test',
  'npx oncegate': 'installs the published package',
  'npx vitest run': 'runs the tests',
  'perf record': 'needs the permission to trace the kernel',
  'redis-cli --cluster fix': 'is what the runbook warns of',
  'ss -tn': 'is for the connections of a gateway in production',
  'ssh ': 'needs another machine',
  'systemctl ': 'needs a service of systemd',
  'wrk ': 'measures',
};

const BEGINNINGS = [...TAKES_OPTIONS, ...Object.keys(RUN_ELSEWHERE), ...Object.keys(NOT_RUN)];

const isIn = (beginnings: readonly string[], command: string) =>
  beginnings.some((begin) => command.startsWith(begin));

describe('every command within a sentence of the documents', () => {
  const documents = globSync(['*.md', 'docs/**/*.md', 'grafana/*.md', 'bench/**/*.md', 'test/*.md'], {
    cwd: ROOT,
    exclude: (path) => path.includes('node_modules'),
  });
  const commands = [
    ...new Set(documents.filter((path) => path !== 'CHANGELOG.md').flatMap((path) => commandsWithin(path))),
  ];

  it('is run by a test, or is in the list of those that cannot run', () => {
    expect(commands.length).toBeGreaterThan(60);
    expect(commands.filter((text) => !(text in PRINTS) && !isIn(BEGINNINGS, text))).toEqual([]);
    const unused = [
      ...Object.keys(PRINTS).filter((text) => !commands.includes(text)),
      ...BEGINNINGS.filter((begin) => !commands.some((text) => text.startsWith(begin))),
    ];
    expect(unused).toEqual([]);
    const missing = Object.values(RUN_ELSEWHERE).filter(
      ([test, has]) => !existsSync(join(ROOT, test)) || !read(test).includes(has),
    );
    expect(missing).toEqual([]);
  });

  describe('prints what its sentence says:', () => {
    const file = join(newFolder(), 'gateway.yaml');
    let stack: Stack;
    let programs: Record<string, string>;
    beforeAll(async () => {
      const folder = newFolder();
      const auth = {
        pepper: 'a-pepper-of-some-length',
        keys: { source: 'file' as const, path: writeKeys(folder) },
      };
      stack = await openStack({ auth });
      const { port } = await startRedis();
      const redisCli = execFileSync('sh', ['-c', 'command -v redis-cli'], { encoding: 'utf8' }).trimEnd();
      programs = { 'redis-cli': `exec ${redisCli} -p ${port} "$@"` };
      writeFileSync(file, stringify(stack.config));
      await withdraw(stack.url, { key: 'order-1', fault: 'execute-then-reset' });
      return () => stack.close();
    });

    it.each(Object.entries(PRINTS))('%s', async (command, printed) => {
      const line = command
        .replace('http://127.0.0.1:8081', stack.adminUrl)
        .replace('FILE', file)
        .replace('--merchant M --id ID', '--merchant M-BRAVO --id bravo-1');
      expect(await inShell(line, { cwd: ROOT, programs })).toMatch(printed);
    });
  });

  it.each(commands.filter((text) => isIn(TAKES_OPTIONS, text)))(
    'has options that there are: %s',
    (command) => {
      const [, script = '', options = ''] = /^npm run (\w+)(?: -- (.+))?$/.exec(command) ?? [];
      const [program = '', ...args] = (scripts[script] ?? '').split(' ');
      expect(program).toBe('node');
      const { status, stdout, stderr } = spawnSync(
        process.execPath,
        [...args, ...options.split(' ').filter((part) => part !== ''), '--help'],
        { cwd: ROOT, encoding: 'utf8' },
      );
      expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
      for (const [option] of options.matchAll(/--[a-z-]+/g)) expect(stdout).toContain(option);
    },
  );
});
