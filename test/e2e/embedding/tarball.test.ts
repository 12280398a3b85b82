import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, globSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { send, withdraw } from '../../support/client.ts';
import { temporaryFolder, writeKeys } from '../../support/config.ts';
import { freePort } from '../../support/free-port.ts';
import { ROOT, read } from '../../support/repository.ts';
import { openSandbox } from '../../support/stack.ts';
import { begin, startTour } from '../../support/tour.ts';
import { until } from '../../support/until.ts';

const DOCUMENT = read('docs/embedding.md');
const DOCUMENTED = read('docs/configuration.md');
const PAYOUT = '{"action":"withdraw","amount":10,"bank_code":"058","account_number":"0123456789"}';

/** npm, and what it installs, must run on the Node of this test. */
const env = { ...process.env, PATH: `${dirname(process.execPath)}:${process.env.PATH}` };

/** The example of docs/embedding.md with this name. */
const exampleOf = (name: string): string =>
  DOCUMENT.match(new RegExp(`\`\`\`js ${name}\\n(.*?)\`\`\``, 's'))?.[1] ?? '';

const COMMIT = '0123456789abcdef0123456789abcdef01234567';

const folder = temporaryFolder();
const sandbox = await openSandbox();
const making = [join(ROOT, 'scripts/package.ts'), join(folder, 'package')];
const made = execFileSync(process.execPath, making, { env: { ...env, ONCEGATE_COMMIT: COMMIT } });
const tarball = String(made).trim();

describe('the npm package', () => {
  it('holds what runs, what a machine needs with it, and nothing else, and installs no Node', () => {
    const names = String(execFileSync('tar', ['-tzf', tarball]))
      .trim()
      .split('\n');
    const top = new Set(names.map((name) => name.split('/')[1]));
    expect([...top].sort()).toEqual(
      [
        'CHANGELOG.md',
        'LICENSE',
        'README.md',
        'SECURITY.md',
        'config',
        'deploy',
        'dist',
        'docs',
        'examples',
        'grafana',
        'package.json',
      ].sort(),
    );
    const inPackage = (path: string) => names.some((name) => name.startsWith(`package/${path}`));
    for (const path of ['docs/operations.md', 'grafana/dashboards/'])
      expect(inPackage(path), path).toBe(true);
    expect(inPackage('deploy/systemd/oncegate.service')).toBe(true);
    for (const path of ['docs/interfaces', 'docs/console', 'grafana/source', 'grafana/generate'])
      expect(inPackage(path), path).toBe(false);
    const manifest = JSON.parse(readFileSync(join(folder, 'package/contents/package.json'), 'utf8'));
    expect(Object.keys(manifest)).not.toContain('optionalDependencies');
    expect(Object.keys(manifest)).not.toContain('devDependencies');
    expect(Object.keys(manifest)).not.toContain('scripts');
    const licences = readFileSync(join(folder, 'package/contents/dist/THIRD-PARTY-LICENSES.md'), 'utf8');
    for (const part of ['## express 5.', 'Douglas Christopher Wilson', '## preact 11.', 'Jason Miller'])
      expect(licences).toContain(part);
  });
});

it('has documents whose links all lead somewhere', () => {
  const contents = join(folder, 'package/contents');
  const targets = globSync('**/*.md', { cwd: contents }).flatMap((path) =>
    [...readFileSync(join(contents, path), 'utf8').matchAll(/\]\((?![a-z]+:)([^)#\s]+)/g)].map(
      ([, target = '']) => join(dirname(path), target),
    ),
  );
  expect(targets).toContain('docs/operations.md');
  expect(targets.filter((target) => !existsSync(join(contents, target)))).toEqual([]);
});

const project = join(folder, 'project');

describe('in an empty project', () => {
  beforeAll(() => {
    mkdirSync(project);
    writeFileSync(join(project, 'package.json'), '{"private":true,"type":"module"}');
    const flags = ['--prefer-offline', '--no-audit', '--no-fund', '--loglevel=error'];
    const install = ['install', ...flags, tarball, 'express@5'];
    execFileSync('npm', install, { cwd: project, env, stdio: 'pipe' });
  }, 180_000);

  /** Starts an example of docs/embedding.md, on a port of its own. */
  async function start(name: string) {
    const port = await freePort();
    writeFileSync(join(project, `${name}.js`), exampleOf(name));
    const variables = { PORT: String(port), BACKEND: sandbox.url, KEYS: writeKeys(project) };
    const program = [process.execPath, `${name}.js`];
    const { printed, end } = begin([], { program, cwd: project, env: { ...env, ...variables } });
    await printed(/listening/);
    return { end, port };
  }

  /** Sends it again while the example's short time limits end on a loaded machine: nothing was executed then. */
  const pay = (port: number, path: string, headers: object, body = PAYOUT) =>
    until(async () => {
      const answer = await send(`http://127.0.0.1:${port}`, {
        method: 'POST',
        path,
        headers: { 'content-type': 'application/json', ...headers },
        body,
      });
      return answer.status === 503 ? undefined : answer;
    });

  it('the command starts sandbox and gateway, and names its build', async () => {
    const cwd = join(folder, 'empty');
    mkdirSync(cwd);
    const main = join(project, 'node_modules/oncegate/dist/main.js');
    const { printed, urlOf, end } = await startTour([], { program: [process.execPath, main, 'start'], cwd });
    const [listening = ''] = await printed(/"msg":"listening"/);
    const answers = [1, 2].map(() => withdraw(urlOf('gateway'), { key: 'order-1001' }));
    expect((await Promise.all(answers)).map(({ status }) => status)).toEqual([201, 201]);
    const ledger = await send(urlOf('sandbox'), { path: '/_sandbox/ledger' });
    expect(ledger.json()).toMatchObject({ payouts: 1 });
    const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
    const build = { version, node: process.versions.node, commit: COMMIT };
    expect(JSON.parse(listening)).toMatchObject({ mode: 'protect', ...build });
    const metrics = await send(urlOf('admin'), { path: '/metrics' });
    expect(metrics.body.toString()).toContain(
      `\noncegate_build_info{version="${version}",node="${build.node}",commit="${COMMIT}"} 1\n`,
    );
    expect(await end('SIGTERM')).toEqual([0, null]);
    expect(readdirSync(cwd)).toEqual(['data']);
  });

  it('proxy: no second payout when the backend executes and then resets', async () => {
    const { port } = await start('proxy');
    const headers = {
      authorization: 'Bearer sk_sandbox_alpha',
      'x-tenant': 'M-ALPHA',
      'idempotency-key': 'proxy',
      'x-sandbox-fault': 'execute-then-reset',
    };
    expect((await pay(port, '/v1/index.php', headers)).status).toBe(502);
    expect((await pay(port, '/v1/index.php', headers)).status).toBe(409);
    expect(sandbox.ledger.payouts({ key: 'proxy' })).toBe(1);
  });

  it('gateway: it serves, and ends at SIGTERM', async () => {
    const { end, port } = await start('gateway');
    const headers = { authorization: 'Bearer sk_sandbox_alpha', 'idempotency-key': 'gateway' };
    expect((await pay(port, '/v1/index.php', headers)).status).toBe(201);
    expect((await pay(port, '/v1/index.php', headers)).headers['idempotent-replayed']).toBe('true');
    expect(sandbox.ledger.payouts({ key: 'gateway' })).toBe(1);
    expect(await end('SIGTERM')).toEqual([0, null]);
  });

  it('handler: a refusal frees the key', async () => {
    const { port } = await start('handler');
    const headers = { 'x-tenant': 'M-ALPHA', 'idempotency-key': 'k-1' };
    expect((await pay(port, '/payouts', headers, '{"amount":0}')).status).toBe(422);
    expect((await pay(port, '/payouts', headers, '{"amount":10}')).status).toBe(201);
    const again = await pay(port, '/payouts', headers, '{"amount":10}');
    expect([again.headers['idempotent-replayed'], again.json()]).toEqual(['true', { paid: 10 }]);
  });
});

/** An old Node of this machine, if any. The Node from the packages comes first in the path of an npm script, and is not old. */
const oldNode = (process.env.PATH ?? '')
  .split(':')
  .concat('/usr/bin', '/usr/local/bin')
  .map((path) => join(path, 'node'))
  .find((node) => /^v(?:1[4-9]|2[0-3])\./.test(spawnSync(node, ['--version']).stdout?.toString() ?? ''));

it.skipIf(oldNode === undefined)('tells a real old Node which version it needs', () => {
  const main = join(folder, 'package/contents/dist/main.js');
  const { status, stdout, stderr } = spawnSync(`${oldNode}`, [main, '--help'], { encoding: 'utf8' });
  expect([status, stdout]).toEqual([1, '']);
  expect(stderr).toMatch(/^oncegate: Node 24\.18 or newer is needed, and \S+ is Node [\d.]+: .*\.\n$/);
});

it('installs no OpenTelemetry, and says what to install for tracing.endpoint', () => {
  const tracing = { endpoint: 'http://127.0.0.1:4318' };
  writeFileSync(
    join(project, 'traced.js'),
    `import { createGateway } from 'oncegate';
    const config = { upstream: { url: '${sandbox.url}' }, tracing: ${JSON.stringify(tracing)} };
    await createGateway(config).catch((error) => console.log(error.message));`,
  );
  const said = execFileSync(process.execPath, ['traced.js'], { cwd: project, env, encoding: 'utf8' });
  expect(said).toMatch(
    /^tracing\.endpoint: needs packages that are not installed: npm install @opentelemetry/,
  );
  const named = said
    .trim()
    .split(' ')
    .filter((word) => word.startsWith('@opentelemetry/'));
  const manifest = JSON.parse(readFileSync(join(folder, 'package/contents/package.json'), 'utf8'));
  expect(named.map((name) => name.slice(0, name.lastIndexOf('@'))).sort()).toEqual(
    Object.keys(manifest.peerDependencies).sort(),
  );
  expect(Object.values(manifest.peerDependenciesMeta)).toEqual(named.map(() => ({ optional: true })));
  // What is named there are the versions that these tests use.
  const { optionalDependencies } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
  for (const name of named) {
    const at = name.lastIndexOf('@');
    expect(`${optionalDependencies[name.slice(0, at)]}.`.startsWith(`${name.slice(at + 1)}.`)).toBe(true);
  }
  expect(DOCUMENTED).toContain(said.trim().split('installed: ')[1]);
});

it('has types: TypeScript accepts them, and refuses mistakes', () => {
  writeFileSync(join(project, 'types.ts'), TYPES);
  const options = ['--noEmit', '--strict', '--module', 'nodenext', '--target', 'es2024', '--types', 'node'];
  const roots = ['--typeRoots', join(ROOT, 'node_modules/@types')];
  const tsc = join(ROOT, 'node_modules/.bin/tsc');
  const check = () =>
    execFileSync(tsc, [...options, ...roots, 'types.ts'], { cwd: project, env, encoding: 'utf8' });
  try {
    check();
  } catch (error) {
    throw new Error((error as { stdout: string }).stdout);
  }
});

/** A line with `@ts-expect-error` is an error if it has no mistake. */
const TYPES = `
import { createServer } from 'node:http';
import { bearerAuth, createGateway, forward, idempotency, metricsMiddleware, redisStore, sqliteStore } from 'oncegate';
import type { Idempotency, IdempotencyOptions, IdempotencyStore } from 'oncegate';

const store: IdempotencyStore = await sqliteStore({ path: './data', leaseMs: 5000 });
await redisStore({ url: 'redis://localhost', durability: { replicas: 1 } });
// @ts-expect-error: times are numbers
await sqliteStore({ leaseMs: '5s' });
const options: IdempotencyOptions = { store, merchant: (req) => String(req.headers['x-tenant']), inDoubt: 'hold' };
const protect = idempotency(options);
// @ts-expect-error: a store is needed
idempotency({});
// @ts-expect-error: not a policy
idempotency({ store, inDoubt: 'maybe' });
const handle = forward({ upstream: 'http://localhost:9000' });
// @ts-expect-error: the backend is needed
forward({});
createServer((req, res) => protect(req, res, () => handle(req, res, () => {})));
const auth = await bearerAuth({ path: './keys.yaml' });
auth.close();
metricsMiddleware(protect.metrics);
const gateway = await createGateway({
  upstream: { url: 'http://localhost:9000', responseTimeoutMs: '20s' },
  operations: [{ name: 'pay', match: { method: 'POST', path: '/pay' }, idempotency: { waitMs: '5s' } }],
});
// @ts-expect-error: not a duration
await createGateway({ upstream: { url: 'http://localhost:9000', responseTimeoutMs: 'soon' } });
// @ts-expect-error: no such section
await createGateway({ upstream: { url: 'http://localhost:9000' }, nothing: {} });
const { port }: { port: number } = await gateway.listen();
// What Express' own types make of a request.
declare const req: Express.Request;
req.idempotency?.release();
const execution: Idempotency | undefined = req.idempotency;
const key: string | undefined = execution?.key;
export { key, port };
`;
