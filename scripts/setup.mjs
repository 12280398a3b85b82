// Prepares a fresh clone: installs the packages that the lock file names. With --faults it also installs what the fault suite
// needs from the system; with --test what all tests need, and the clients that they drive; with --bench what the benchmark
// needs, and its peers. It is plain JavaScript without packages, because it runs before any are installed, on Node 20 or newer.
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));

function fail(message) {
  process.stderr.write(`oncegate: ${message}\n`);
  process.exit(1);
}

function run(command, args, what, cwd = root) {
  process.stderr.write(`oncegate: ${what} ...\n`);
  const { status, error } = spawnSync(command, args, { cwd, stdio: ['ignore', 'ignore', 'inherit'] });
  if (status !== 0) fail(`${what} failed${error ? `: ${error.message}` : ` (exit code ${status})`}`);
}

/** Installs in a folder with a lock file, once for each state of that file. */
function installPackages(folder, what) {
  const stamp = join(folder, 'node_modules', '.oncegate-installed');
  const digest = createHash('sha256')
    .update(readFileSync(join(folder, 'package-lock.json')))
    .digest('hex');
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === digest) return;
  // npm gives its scripts its own path.
  const npm = process.env.npm_execpath;
  const [command, args] = npm ? [process.execPath, [npm]] : ['npm', []];
  run(
    command,
    [...args, 'ci', '--include=dev', '--include=optional', '--no-audit', '--no-fund', '--loglevel=error'],
    `installing ${what} (once)`,
    folder,
  );
  writeFileSync(stamp, digest);
}

/** On Linux, Node 24 is installed as an npm package. On other systems it must already be installed. */
function checkNode() {
  const carried = join(root, 'node_modules', '.bin', 'node');
  const node = existsSync(carried) ? carried : process.execPath;
  const version = spawnSync(node, ['--version'], { encoding: 'utf8' }).stdout?.trim() ?? 'none';
  const [major = 0, minor = 0] = version.replace('v', '').split('.').map(Number);
  if (major < 24 || (major === 24 && minor < 18))
    fail(
      `Node 24.18 or newer is needed; this is ${version}, and the package that brings Node does not support ${process.platform} ${process.arch}`,
    );
}

const answers = (command, ...args) => spawnSync(command, args).status === 0;

/** Debian packages, each with a check whether it is installed. */
const testPackages = {
  'redis-server': () => answers('redis-server', '--version'),
  curl: () => answers('curl', '--version'),
  // The fault suite moves a gateway's wall clock.
  faketime: () => answers('faketime', '--version'),
  // libfiu makes a gateway's system calls fail.
  'fiu-utils': () => existsSync('/usr/bin/fiu-ctrl') && existsSync('/usr/lib/fiu/fiu_posix_preload.so'),
  // For `prlimit` and `fallocate`, which make a disk full.
  'util-linux': () => answers('prlimit', '--version'),
};
const benchPackages = {
  'redis-server': testPackages['redis-server'],
  nginx: () => answers('nginx', '-v'),
  // Its version option exits with 1.
  wrk: () => spawnSync('wrk', ['--version']).error === undefined,
};

const mayInstall = () => process.getuid?.() === 0 && answers('apt-get', '--version');

let listsAreRead = false;
function readPackageLists() {
  if (!listsAreRead) run('apt-get', ['update', '-qq'], 'reading the package lists');
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
    ['install', '-y', '-qq', '--no-install-recommends', ...missing],
    `installing ${names} for ${purpose}`,
  );
}

/**
 * promtool, Prometheus' checker for the rules and the dashboard. It is extracted from its Debian package, because installing
 * the package would start a server.
 */
function fetchPromtool() {
  const tools = join(root, 'node_modules', '.tools');
  const carried = join(tools, 'promtool');
  if (answers('promtool', '--version') || answers(carried, '--version')) return;
  if (!mayInstall())
    fail('promtool must be there for the tests: install it (it comes with Prometheus) and try again');
  const folder = join(tools, 'prometheus');
  // What an earlier attempt may have left.
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  readPackageLists();
  // Otherwise apt warns that its own user cannot write to this folder.
  const download = ['-o', 'APT::Sandbox::User=root', 'download', '-qq', 'prometheus'];
  run('apt-get', download, 'fetching promtool (once)', folder);
  const unpack = 'dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool';
  run('sh', ['-c', unpack], 'unpacking promtool', folder);
  renameSync(join(folder, 'usr', 'bin', 'promtool'), carried);
  rmSync(folder, { recursive: true });
}

installPackages(root, 'packages');
checkNode();
const wanted = new Set(process.argv.slice(2));
if (wanted.has('--faults') || wanted.has('--test')) installSystemPackages(testPackages, 'the tests');
if (wanted.has('--test')) {
  fetchPromtool();
  installPackages(join(root, 'test', 'clients', 'programs'), "the tests' clients");
}
if (wanted.has('--bench')) {
  installSystemPackages(benchPackages, 'the benchmark');
  installPackages(join(root, 'bench', 'peers'), "the benchmark's peers");
}
