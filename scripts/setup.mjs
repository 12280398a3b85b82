// Prepares a fresh clone: installs the packages that the lock file names, and bundles the pages of the admin port. With --faults it
// also installs what the fault suite needs from the system; with --test what all tests need, and the clients that they drive;
// with --bench what the benchmark needs, and its peers; with --api TypeDoc. It is plain JavaScript without packages, because it
// runs before any are installed, on Node 20 or newer.
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
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

/** Debian packages, each with a check whether it is installed. */
const testPackages = {
  'redis-server': () => answers('redis-server', '--version'),
  curl: () => answers('curl', '--version'),
  // Makes the certificates of the tests.
  openssl: () => answers('openssl', 'version'),
  // The fault suite moves a gateway's wall clock.
  faketime: () => answers('faketime', '--version'),
  // libfiu makes a gateway's system calls fail.
  'fiu-utils': () => existsSync('/usr/bin/fiu-ctrl') && existsSync('/usr/lib/fiu/fiu_posix_preload.so'),
  // For `prlimit` and `fallocate`, which make a disk full.
  'util-linux': () => answers('prlimit', '--version'),
};
/** What `npm test` needs more. The fault suite does without. */
const morePackages = {
  // Shows the console's page.
  chromium: () => answers('chromium', '--version'),
  // They check the manifests and the unit, and run in front of the gateway.
  'kubernetes-client': () => answers('kubectl', 'version', '--client'),
  systemd: () => answers('systemd-analyze', '--version'),
  nginx: () => answers('nginx', '-v'),
  haproxy: () => answers('haproxy', '-v'),
  // The runbook inspects and backs up the records with it.
  sqlite3: () => answers('sqlite3', '--version'),
  // They run the example clients.
  'php-cli': () => answers('php', '--version'),
  python3: () => answers('python3', '--version'),
  'golang-go': () => answers('go', 'version'),
  'default-jdk-headless': () => answers('javac', '-version'),
};
const benchPackages = {
  'redis-server': testPackages['redis-server'],
  nginx: () => answers('nginx', '-v'),
  // Its version option exits with 1.
  wrk: () => spawnSync('wrk', ['--version']).error === undefined,
};

const mayInstall = () => process.getuid?.() === 0 && answers('apt-get', '--version');

/** A mirror may drop a connection. */
const RETRIES = ['-o', 'Acquire::Retries=5'];

let listsAreRead = false;
function readPackageLists() {
  if (!listsAreRead) run('apt-get', ['update', '-qq', ...RETRIES], 'reading the package lists');
  listsAreRead = true;
}

/** @param purpose what needs them */
function installSystemPackages(packages, purpose) {
  const missing = Object.keys(packages).filter((name) => !packages[name]());
  if (missing.length === 0) return;
  const names = missing.join(' ');
  if (!mayInstall()) {
    fail(
      `${names} (redis-server 7.0 or newer) must be there for ${purpose}: install it (Debian, Ubuntu: sudo apt-get install ${names}) and try again`,
    );
  }
  process.env.DEBIAN_FRONTEND = 'noninteractive';
  readPackageLists();
  run(
    'apt-get',
    ['install', '-y', '-qq', '--no-install-recommends', ...RETRIES, ...missing],
    `installing ${names} for ${purpose}`,
  );
}

/**
 * Prometheus and its checker promtool, for the tests of the rules and the dashboards. They are extracted from their Debian
 * package, because installing the package would start a server.
 */
function fetchPrometheus() {
  const tools = join(root, 'node_modules', '.tools');
  const programs = ['prometheus', 'promtool'];
  const isThere = (name) => answers(name, '--version') || answers(join(tools, name), '--version');
  if (programs.every(isThere)) return;
  if (!mayInstall())
    fail('prometheus and promtool must be there for the tests: install Prometheus and try again');
  const folder = join(tools, 'package');
  // What an earlier attempt may have left.
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  readPackageLists();
  // Otherwise apt warns that its own user cannot write to this folder.
  const download = [...RETRIES, '-o', 'APT::Sandbox::User=root', 'download', '-qq', 'prometheus'];
  run('apt-get', download, 'fetching Prometheus (once)', folder);
  const paths = programs.map((name) => `./usr/bin/${name}`).join(' ');
  run(
    'sh',
    ['-c', `dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ${paths}`],
    'unpacking Prometheus',
    folder,
  );
  for (const name of programs) renameSync(join(folder, 'usr', 'bin', name), join(tools, name));
  rmSync(folder, { recursive: true });
}

installPackages(root, 'packages');
const node = checkNode();
const { status } = spawnSync(node, [join(root, 'scripts', 'pages.ts')], {
  stdio: ['ignore', 'ignore', 'inherit'],
});
if (status !== 0) fail('bundling the pages of the admin port failed');
const wanted = new Set(process.argv.slice(2));
if (wanted.has('--faults') || wanted.has('--test')) installSystemPackages(testPackages, 'the tests');
if (wanted.has('--test')) {
  installSystemPackages(morePackages, 'the tests');
  fetchPrometheus();
  installPackages(join(root, 'test', 'clients', 'programs'), "the tests' clients");
  // The kernel has not yet written what npm installed: hundreds of megabytes, behind which the writes of the tests would wait.
  spawnSync('sync', ['--file-system', root]);
}
if (wanted.has('--bench')) {
  installSystemPackages(benchPackages, 'the benchmark');
  installPackages(join(root, 'bench', 'peers'), "the benchmark's peers");
}
if (wanted.has('--api')) installPackages(join(root, 'scripts', 'api'), 'TypeDoc');
