// Prepares a fresh clone: installs the packages that the lock file names, and bundles console and command. With the name of a command in
// RUNS it also checks what that command needs from the system, and then runs it. Programs from the system are installed only after
// a question, or with --install. It is plain JavaScript without packages, because it runs before any are installed, on Node 20 or newer.
import { spawn, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { constants } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { createInterface } from 'node:readline/promises';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));

function fail(message) {
  process.stderr.write(`oncegate: ${message}\n`);
  process.exit(1);
}

function run(command, args, what, cwd = root, env = process.env) {
  process.stderr.write(`oncegate: ${what} ...\n`);
  const { status, error } = spawnSync(command, args, { cwd, env, stdio: ['ignore', 'ignore', 'inherit'] });
  if (status !== 0) fail(`${what} failed${error ? `: ${error.message}` : ` (exit code ${status})`}`);
}

/** Installs in a folder with a lock file, once for each state of that file. */
function installPackages(folder, what) {
  const stamp = join(folder, 'node_modules', '.oncegate-installed');
  const digest = createHash('sha256')
    .update(readFileSync(join(folder, 'package-lock.json')))
    .digest('hex');
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === digest) return;
  npm(['ci', '--include=dev', '--include=optional'], `installing ${what} (once)`, folder);
  // npm leaves out optional packages that need a newer Node than the one that runs npm, without a word.
  const carried = join(folder, 'node_modules', '.bin', 'node');
  if (existsSync(carried))
    npm(['install', '--no-save'], `installing ${what} for Node 24 (once)`, folder, carried);
  writeFileSync(stamp, digest);
}

/** Runs npm with this Node, or with another one. */
function npm(args, what, cwd, node = process.execPath) {
  const quiet = [...args, '--no-audit', '--no-fund', '--loglevel=error'];
  // npm gives its scripts its own path.
  const { npm_execpath: npmPath, PATH } = process.env;
  if (npmPath) run(node, [npmPath, ...quiet], what, cwd);
  else run('npm', quiet, what, cwd, { ...process.env, PATH: `${dirname(node)}${delimiter}${PATH}` });
}

/** On Linux, Node 24 is installed as an npm package. On other systems it must already be installed. Returns its path. */
function checkNode() {
  const carried = join(root, 'node_modules', '.bin', 'node');
  const node = existsSync(carried) ? carried : process.execPath;
  const version = spawnSync(node, ['--version'], { encoding: 'utf8' }).stdout?.trim() ?? 'none';
  const [major = 0, minor = 0] = version.replace('v', '').split('.').map(Number);
  if (major < 24 || (major === 24 && minor < 18))
    fail(
      `Node 24.18 or newer is needed; this is ${version}, and the package that brings Node does not support ${process.platform} ${process.arch}`,
    );
  return node;
}

const answers = (command, ...args) => spawnSync(command, args).status === 0;

const versionsOf = (folder) =>
  existsSync(folder) ? readdirSync(folder).map((version) => join(folder, version, 'bin')) : [];

/** Debian packages, each with a check whether it is installed. */
const testPackages = {
  'redis-server': () => answers('redis-server', '--version'),
  // Debian keeps the programs of each version in a folder of its own. It also starts a server, which the tests do not use.
  postgresql: () => versionsOf('/usr/lib/postgresql').some((bin) => existsSync(join(bin, 'initdb'))),
  // Makes the certificates of the tests.
  openssl: () => answers('openssl', 'version'),
  // For `prlimit` and `fallocate`, which make a disk full.
  'util-linux': () => answers('prlimit', '--version'),
  // Moves a gateway's wall clock.
  faketime: () => answers('faketime', '--version'),
};
const chaosPackages = {
  ...testPackages,
  // libfiu makes a gateway's system calls fail.
  'fiu-utils': () => existsSync('/usr/bin/fiu-ctrl') && existsSync('/usr/lib/fiu/fiu_posix_preload.so'),
};
const allPackages = {
  ...chaosPackages,
  // Shows the console's page.
  chromium: () => answers('chromium', '--version'),
  // They check the manifests and the unit, and run in front of the gateway.
  'kubernetes-client': () => answers('kubectl', 'version', '--client'),
  systemd: () => answers('systemd-analyze', '--version'),
  nginx: () => answers('nginx', '-v'),
  haproxy: () => answers('haproxy', '-v'),
  // Stands between a gateway and PostgreSQL.
  pgbouncer: () => answers('pgbouncer', '--version'),
  // The documents use them.
  curl: () => answers('curl', '--version'),
  sqlite3: () => answers('sqlite3', '--version'),
  // They run the example clients.
  'php-cli': () => answers('php', '--version'),
  python3: () => answers('python3', '--version'),
  'golang-go': () => answers('go', 'version'),
  'default-jdk-headless': () => answers('javac', '-version'),
};
const deployPackages = {
  // They build the image, and the image that it is based on.
  buildah: () => answers('buildah', '--version'),
  debootstrap: () => answers('debootstrap', '--version'),
  // The functions of Helm's templates.
  'golang-github-masterminds-sprig-dev': () =>
    existsSync('/usr/share/gocode/src/github.com/Masterminds/sprig'),
  'golang-k8s-sigs-yaml-dev': () => existsSync('/usr/share/gocode/src/sigs.k8s.io/yaml'),
};
const benchPackages = {
  'redis-server': testPackages['redis-server'],
  postgresql: testPackages.postgresql,
  nginx: () => answers('nginx', '-v'),
  // Its version option exits with 1.
  wrk: () => spawnSync('wrk', ['--version']).error === undefined,
};

/** What each command of package.json needs from the system, and the program that it runs. */
const RUNS = {
  test: { program: 'scripts/test.ts', packages: testPackages },
  'test:fast': { program: 'scripts/test.ts', arguments: ['--fast'] },
  'test:all': {
    program: 'scripts/test.ts',
    arguments: ['--all'],
    packages: { ...allPackages, ...deployPackages },
    folders: ['test/clients/programs'],
    needsPrometheus: true,
  },
  chaos: { program: 'test/faults/chaos/main.ts', packages: chaosPackages },
  simulate: { program: 'test/simulation/main.ts' },
  mutants: { program: 'scripts/mutants.ts', packages: allPackages, needsPrometheus: true },
  bench: { program: 'bench/main.ts', packages: benchPackages, folders: ['bench/peers'] },
};

const mayInstall = () => process.getuid?.() === 0 && answers('apt-get', '--version');

/** A mirror may drop a connection. */
const RETRIES = ['-o', 'Acquire::Retries=5'];

const tools = join(root, 'node_modules', '.tools');
/** Programs by the Debian package that they are extracted from. */
const PROMETHEUS = { prometheus: ['prometheus', 'promtool'], 'prometheus-alertmanager': ['amtool'] };
const isMissing = (name) => !answers(name, '--version') && !answers(join(tools, name), '--version');
const missingOfPrometheus = () => Object.keys(PROMETHEUS).filter((name) => PROMETHEUS[name].some(isMissing));

/** Installs what the command needs from the system, if the person agrees or has said --install. */
async function installSystemPackages(command, { packages = {}, needsPrometheus = false }, isAgreed) {
  const names = Object.keys(packages).filter((name) => !packages[name]());
  const fetched = needsPrometheus ? missingOfPrometheus() : [];
  const missing = [...names, ...fetched];
  if (missing.length === 0) return;
  const needed = `npm run ${command} needs ${missing.join(' ')} (redis-server 7.0 or newer, postgresql 13 or newer)`;
  if (!mayInstall()) fail(`${needed}. Debian, Ubuntu: sudo apt-get install ${missing.join(' ')}`);
  if (!isAgreed) {
    if (!process.stdin.isTTY)
      fail(`${needed}. Install it, or let this command do so: npm run ${command} -- --install`);
    const terminal = createInterface({ input: process.stdin, output: process.stderr });
    const answer = await terminal.question(`oncegate: ${needed}. Install it from Debian now? [y/N] `);
    terminal.close();
    if (!/^y(?:es)?$/i.test(answer.trim())) fail('nothing was installed');
  }
  process.env.DEBIAN_FRONTEND = 'noninteractive';
  run('apt-get', ['update', '-qq', ...RETRIES], 'reading the package lists');
  const options = ['install', '-y', '-qq', '--no-install-recommends', ...RETRIES];
  if (names.length > 0)
    run('apt-get', [...options, ...names], `installing ${names.join(' ')} for npm run ${command}`);
  for (const name of fetched) fetchTool(name);
}

/**
 * Prometheus, its checker promtool and that of Alertmanager, for the tests of rules, routes and dashboards. They are extracted from
 * their Debian packages, because installing those would start servers.
 */
function fetchTool(name) {
  const folder = join(tools, 'package');
  // What an earlier attempt may have left.
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  // Otherwise apt warns that its own user cannot write to this folder.
  const download = [...RETRIES, '-o', 'APT::Sandbox::User=root', 'download', '-qq', name];
  run('apt-get', download, `fetching ${name} (once)`, folder);
  const paths = PROMETHEUS[name].map((program) => `./usr/bin/${program}`).join(' ');
  const unpack = `dpkg-deb --fsys-tarfile ${name}_*.deb | tar -x ${paths}`;
  run('sh', ['-c', unpack], `unpacking ${name}`, folder);
  for (const program of PROMETHEUS[name])
    renameSync(join(folder, 'usr', 'bin', program), join(tools, program));
  rmSync(folder, { recursive: true });
}

installPackages(root, 'packages');
const node = checkNode();
const { status } = spawnSync(node, [join(root, 'scripts', 'bundle.ts')], { stdio: 'inherit' });
if (status !== 0) fail('bundling failed');
const [command, ...rest] = process.argv.slice(2);
if (command !== undefined) {
  const { program, arguments: own = [], folders = [], ...needs } = RUNS[command];
  if (!rest.includes('--help')) {
    await installSystemPackages(command, needs, rest.includes('--install'));
    for (const folder of folders) installPackages(join(root, folder), `the packages of ${folder}`);
  }
  // The kernel has not yet written what npm installed: hundreds of megabytes, behind which the writes of the tests would wait.
  if (command.startsWith('test')) spawnSync('sync', ['--file-system', root]);
  const given = rest.filter((argument) => argument !== '--install');
  const child = spawn(node, [join(root, program), ...own, ...given], { cwd: root, stdio: 'inherit' });
  for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => child.kill(signal));
  child.once('exit', (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
}
