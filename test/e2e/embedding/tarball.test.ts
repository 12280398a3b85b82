import { execFileSync, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  existsSync,
  globSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import { send, withdraw } from '../../support/client.ts';
import { inShell } from '../../support/command.ts';
import { temporaryFolder, writeKeys } from '../../support/config.ts';
import { commandsUnder, commandsWithin } from '../../support/documents.ts';
import { freePort } from '../../support/free-port.ts';
import { ROOT, read } from '../../support/repository.ts';
import { compileStrictly, writeSnippets } from '../../support/snippets.ts';
import { openSandbox } from '../../support/stack.ts';
import { begin, startTour } from '../../support/tour.ts';
import { until } from '../../support/until.ts';
import { EXPORTS, IN_COMMONJS, WITH_EXPRESS, WITHOUT_EXPRESS } from './package-types.ts';

const README = 'scripts/package/README.md';
const DOCUMENTED = read('docs/configuration.md');
const PAYOUT = '{"action":"withdraw","amount":10,"bank_code":"058","account_number":"0123456789"}';

/** npm, and what it installs, must run on the Node of this test. */
const env = { ...process.env, PATH: `${dirname(process.execPath)}:${process.env.PATH}` };

/** The example of a document with this name. */
const exampleOf = (document: string, name: string): string =>
  read(document).match(new RegExp(`\`\`\`c?js ${name}\\n(.*?)\`\`\``, 's'))?.[1] ?? '';

const MERCHANT = { authorization: 'Bearer sk_sandbox_alpha' };
const COMMIT = '0123456789abcdef0123456789abcdef01234567';

const TYPE_PACKAGES = ['@types/node@24', '@types/express@5', 'types-express-4@npm:@types/express@4'];
/** What docs/migrating.md shows the code of, in the versions that the benchmark has. */
const OTHERS = Object.entries(JSON.parse(read('bench/peers/package.json')).dependencies)
  .filter(([name]) => /^@node-idempotency|^express-idempotency$/.test(name))
  .map(([name, version]) => `${name}@${version}`);

const folder = temporaryFolder();
afterAll(() => rmSync(folder, { recursive: true }), 300_000);
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
const [install, pepper, issue] = commandsUnder(README, 'Install');

describe('in an empty project', () => {
  beforeAll(() => {
    mkdirSync(project);
    writeFileSync(join(project, 'package.json'), '{"private":true}');
    const flags = ['--prefer-offline', '--no-audit', '--no-fund', '--loglevel=error'];
    expect(install?.text).toBe('npm install oncegate express');
    const packages = [tarball, 'express@5', ...TYPE_PACKAGES, ...OTHERS];
    execFileSync('npm', ['install', ...flags, ...packages], { cwd: project, env, stdio: 'pipe' });
  }, 600_000);

  /** Begins an example, in a folder of its own. */
  function beginExample(name: string, document: string, port: number) {
    const cwd = join(project, `${document.replaceAll('/', '-')}-${name}`);
    mkdirSync(cwd);
    const file = name === 'commonjs' ? 'example.cjs' : 'example.mjs';
    writeFileSync(join(cwd, file), exampleOf(document, name));
    const variables = { PORT: String(port), BACKEND: sandbox.url, KEYS: writeKeys(cwd) };
    const program = [process.execPath, file];
    return begin([], { program, cwd, env: { ...env, ...variables } });
  }

  /** Starts an example, on a port of its own. */
  async function start(name: string, document = 'docs/embedding.md') {
    const port = await freePort();
    const { printed, end } = beginExample(name, document, port);
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

  it.each([README, 'docs/embedding.md'])(
    'proxy of %s: no second payout when the backend executes and then resets',
    async (document) => {
      const { port } = await start('proxy', document);
      const fault = { 'idempotency-key': document, 'x-sandbox-fault': 'execute-then-reset' };
      expect((await pay(port, '/v1/index.php', { ...MERCHANT, ...fault })).status).toBe(502);
      expect((await pay(port, '/v1/index.php', { ...MERCHANT, ...fault })).status).toBe(409);
      expect(sandbox.ledger.payouts({ key: document })).toBe(1);
      expect((await pay(port, '/v1/index.php', fault)).status).toBe(401);
    },
  );

  it('gateway: it serves, and ends at SIGTERM', async () => {
    const { end, port } = await start('gateway');
    const headers = { ...MERCHANT, 'idempotency-key': 'gateway' };
    expect((await pay(port, '/v1/index.php', headers)).status).toBe(201);
    expect((await pay(port, '/v1/index.php', headers)).headers['idempotent-replayed']).toBe('true');
    expect(sandbox.ledger.payouts({ key: 'gateway' })).toBe(1);
    expect(await end('SIGTERM')).toEqual([0, null]);
  });

  it('handler: a refusal frees the key', async () => {
    const { port } = await start('handler');
    const headers = { ...MERCHANT, 'idempotency-key': 'k-1' };
    expect((await pay(port, '/payouts', headers, '{"amount":0}')).status).toBe(422);
    expect((await pay(port, '/payouts', headers, '{"amount":10}')).status).toBe(201);
    const again = await pay(port, '/payouts', headers, '{"amount":10}');
    expect([again.headers['idempotent-replayed'], again.json()]).toEqual(['true', { paid: 10 }]);
  });

  it('an example whose port is in use says so, and ends', async () => {
    const taken = createServer().listen(0);
    await once(taken, 'listening');
    onTestFinished(() => void taken.close());
    const { port } = taken.address() as AddressInfo;
    const { child, output } = beginExample('handler', README, port);
    expect(await once(child, 'close')).toEqual([1, null]);
    expect(output()).toContain('EADDRINUSE');
    expect(output()).not.toMatch(/^listening$/m);
  });

  it('commonjs: a handler pays once', async () => {
    const { port } = await start('commonjs', README);
    const first = await pay(port, '/payouts', { 'idempotency-key': 'k-1' }, '{"amount":10}');
    const again = await pay(port, '/payouts', { 'idempotency-key': 'k-1' }, '{"amount":10}');
    expect([first.status, again.headers['idempotent-replayed']]).toEqual([201, 'true']);
  });

  it('the commands of its README make a key, pay once with it, and start the gateway', async () => {
    const inProject = (command: string, more: NodeJS.ProcessEnv = {}) =>
      inShell(command, { cwd: project, env: { ...env, ...more } });
    const printed = await inProject(`${pepper?.text}\n${issue?.text}\necho $ONCEGATE_PEPPER`);
    const [KEY = '', ONCEGATE_PEPPER = ''] = printed.split('\n');
    writeFileSync(join(project, 'payouts.mjs'), exampleOf(README, 'handler'));
    expect(read(README)).toContain('`npx node payouts.mjs`');
    const PORT = String(await freePort());
    const program = [process.execPath, 'payouts.mjs'];
    const { printed: saying } = begin([], { program, cwd: project, env: { ...env, PORT, ONCEGATE_PEPPER } });
    await saying(/listening/);
    const [pay] = commandsUnder(README, 'In front of your own handler');
    const here = (pay?.text ?? '').replace('3000', PORT);
    for (const _ of [1, 2]) expect(await inProject(here, { KEY })).toBe('{"paid":10,"to":"M-1001"}');
    const [command, init] = commandsUnder(README, 'The gateway');
    expect(command?.text).toBe('npx oncegate start');
    expect(await inProject(init?.text ?? '')).toMatch(/^og_live_/);
    expect(existsSync(join(project, 'gateway/gateway.yaml'))).toBe(true);
    expect(commandsWithin(README)).toEqual(['npx node payouts.mjs', 'npx oncegate --help']);
    expect(await inProject('npx oncegate --help')).toMatch(/^ {2}oncegate start /m);
  });
});

const linux = ['x64', 'arm64'].includes(process.arch) && process.platform === 'linux';
const carried = `node-linux-${process.arch}`;

describe.runIf(linux).each(['20.20.2', '22.22.0'])('a real Node %s', (version) => {
  const home = join(folder, version);
  const old = join(home, 'node_modules', '.bin', 'node');
  beforeAll(() => {
    mkdirSync(home);
    const options = ['--prefer-offline', '--no-audit', '--no-fund', '--no-save', `${carried}@${version}`];
    execFileSync('npm', ['install', ...options], { cwd: home, env, stdio: 'pipe' });
  }, 600_000);

  it('is told by command, import and require which Node is needed, and how to get it', () => {
    const needed = `Node 24.18 or newer is needed, and ${realpathSync(old)} is Node ${version}`;
    const sentence = `oncegate: ${needed}: npm install ${carried}@24 brings it into a project, where npx and npm run find it.`;
    const command = spawnSync(old, [join(project, 'node_modules/.bin/oncegate'), '--help'], {
      encoding: 'utf8',
    });
    expect([command.status, command.stdout, command.stderr]).toEqual([1, '', `${sentence}\n`]);
    for (const [file, program] of Object.entries({
      'old.mjs': "import { idempotency } from 'oncegate'; console.log(idempotency);",
      'old.cjs': "console.log(require('oncegate'));",
    })) {
      writeFileSync(join(project, file), program);
      const { status, stdout, stderr } = spawnSync(old, [file], { cwd: project, encoding: 'utf8' });
      expect([status, stdout]).toEqual([1, '']);
      expect(stderr.match(/^\w*Error.*$/gm)).toEqual([`Error: ${sentence}`]);
    }
  });
});

it('installs no OpenTelemetry and no pg, and says what to install for tracing.endpoint and for PostgreSQL', () => {
  const tracing = { endpoint: 'http://127.0.0.1:4318' };
  writeFileSync(
    join(project, 'traced.mjs'),
    `import { createGateway } from 'oncegate';
    const config = { upstream: { url: '${sandbox.url}' }, tracing: ${JSON.stringify(tracing)} };
    await createGateway(config).catch((error) => console.log(error.message));`,
  );
  const said = execFileSync(process.execPath, ['traced.mjs'], { cwd: project, env, encoding: 'utf8' });
  expect(said).toMatch(
    /^tracing\.endpoint: needs packages that are not installed: npm install @opentelemetry/,
  );
  writeFileSync(
    join(project, 'postgres.mjs'),
    `import { createGateway } from 'oncegate';
    const store = { kind: 'postgres', url: 'postgres://oncegate@127.0.0.1:9/payments' };
    const config = { upstream: { url: '${sandbox.url}' }, auth: { keys: { source: 'upstream' } }, store };
    await createGateway(config).catch((error) => console.log(error.message));`,
  );
  const needed = execFileSync(process.execPath, ['postgres.mjs'], { cwd: project, env, encoding: 'utf8' });
  expect(needed).toBe('store.kind: postgres needs the package pg: npm install pg@8\n');
  const named = `${said} ${needed}`.split(/\s/).filter((word) => /^(?:@opentelemetry\/.+|pg)@\d/.test(word));
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
  expect(DOCUMENTED).toContain('npm install pg@8');
});

describe('its types', () => {
  const types = join(project, 'types');
  const inFolder = (file: string, text: string) => {
    writeFileSync(join(types, file), text);
    return file;
  };

  it('fit strict applications with Express 5, with Express 4 and without types of Express, and refuse mistakes', () => {
    mkdirSync(types);
    const [exports, withExpress] = [inFolder('exports.mts', EXPORTS), inFolder('express.mts', WITH_EXPRESS)];
    compileStrictly(types, [exports, withExpress]);
    const packages = join(project, 'node_modules');
    compileStrictly(types, [withExpress], { paths: { express: [join(packages, 'types-express-4')] } });
    const without = [exports, inFolder('without.mts', WITHOUT_EXPRESS)];
    compileStrictly(types, without, { paths: { express: [join(packages, 'express', 'index.js')] } });
    compileStrictly(types, [inFolder('commonjs.cts', IN_COMMONJS)], { module: 'node16' });
  });

  it('fit the example in TypeScript, which then runs, as its README says', async () => {
    const cwd = join(project, 'typescript');
    mkdirSync(cwd);
    const [, sentence = '', example = ''] =
      /^## TypeScript\n\n(.*?)```ts\n(.*?)```/ms.exec(read(README)) ?? [];
    const named = [...sentence.matchAll(/`("\w+": "\w+")` in\s`([\w.]+)`/g)];
    const texts = Object.fromEntries(named.map(([, member, file]) => [file, `{${member}}`]));
    expect(texts).toEqual({
      'package.json': '{"type": "module"}',
      'tsconfig.json': '{"module": "nodenext"}',
    });
    const strict = { ...JSON.parse(texts['tsconfig.json'] as string), strict: true };
    writeFileSync(join(cwd, 'tsconfig.json'), JSON.stringify({ compilerOptions: strict }));
    writeFileSync(join(cwd, 'protect.ts'), example);
    const compile = () =>
      execFileSync(join(ROOT, 'node_modules/.bin/tsc'), ['-p', cwd], { encoding: 'utf8' });
    writeFileSync(join(cwd, 'package.json'), '{}');
    expect(compile).toThrow();
    writeFileSync(join(cwd, 'package.json'), texts['package.json'] as string);
    compile();
    const use = "import { protect } from './protect.js'; console.log(typeof protect); process.exit();";
    writeFileSync(join(cwd, 'use.js'), use);
    expect(execFileSync(process.execPath, ['use.js'], { cwd, env, encoding: 'utf8' })).toBe('function\n');
  });

  it('fit every example of the documents, also those of before a migration', () => {
    const snippets = join(project, 'snippets');
    const files = writeSnippets(snippets);
    expect(files.length).toBeGreaterThanOrEqual(16);
    compileStrictly(snippets, files);
    const ofExpress = files.filter((file) => /^docs-embedding|^scripts-package/.test(file));
    expect(ofExpress.length).toBeGreaterThanOrEqual(8);
    const express4 = [join(project, 'node_modules', 'types-express-4')];
    compileStrictly(snippets, ofExpress, { paths: { express: express4 } });
    writeFileSync(join(snippets, 'wrong.mjs'), exampleOf(README, 'proxy').replace('upstream:', 'backend:'));
    expect(() => compileStrictly(snippets, ['wrong.mjs'])).toThrow(/wrong\.mjs.*'backend'/);
  });
});
