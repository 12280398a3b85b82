import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { existsSync, globSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createSandbox, type Sandbox } from '../../../src/sandbox/sandbox.ts';
import { send } from '../../support/client.ts';
import { temporaryFolder, writeKeys } from '../../support/config.ts';
import { freePort } from '../../support/free-port.ts';
import { track } from '../../support/spawn.ts';
import { until } from '../../support/until.ts';

const ROOT = fileURLToPath(new URL('../../../', import.meta.url));
const DOCUMENT = readFileSync(join(ROOT, 'docs/embedding.md'), 'utf8');
const DOCUMENTED = readFileSync(join(ROOT, 'docs/configuration.md'), 'utf8');
const PAYOUT = '{"action":"withdraw","amount":10,"bank_code":"058","account_number":"0123456789"}';

/** npm, and what it installs, must run on the Node of this test. */
const env = { ...process.env, PATH: `${dirname(process.execPath)}:${process.env.PATH}` };

/** The example of docs/embedding.md with this name. */
const exampleOf = (name: string): string =>
  DOCUMENT.match(new RegExp(`\`\`\`js ${name}\\n(.*?)\`\`\``, 's'))?.[1] ?? '';

let tarball = '';
let sandbox: Sandbox;
const folder = temporaryFolder();

beforeAll(async () => {
  sandbox = await createSandbox({ port: 0 });
  const printed = execFileSync(
    process.execPath,
    [join(ROOT, 'scripts/package.ts'), join(folder, 'package')],
    { env },
  );
  tarball = String(printed).trim();
}, 120_000);
afterAll(() => sandbox.close());

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
        'THIRD-PARTY-LICENSES.md',
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
    for (const path of ['docs/operations.md', 'docs/api/README.md', 'grafana/dashboards/'])
      expect(inPackage(path), path).toBe(true);
    expect(inPackage('deploy/systemd/oncegate.service')).toBe(true);
    for (const path of ['docs/api/interfaces', 'docs/console', 'grafana/source', 'grafana/generate'])
      expect(inPackage(path), path).toBe(false);
    const manifest = JSON.parse(readFileSync(join(folder, 'package/contents/package.json'), 'utf8'));
    expect(Object.keys(manifest)).not.toContain('optionalDependencies');
    expect(Object.keys(manifest)).not.toContain('devDependencies');
    expect(Object.keys(manifest)).not.toContain('scripts');
    const licences = readFileSync(join(folder, 'package/contents/THIRD-PARTY-LICENSES.md'), 'utf8');
    for (const part of ['| express | 5.', '## preact 11.', '## swagger-ui-dist 5.', 'SmartBear Software'])
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
  expect(targets).toContain('docs/api/README.md');
  expect(targets.filter((target) => !existsSync(join(contents, target)))).toEqual([]);
});

describe.each([
  ['Express 5', 'express@5'],
  ['Express 4', 'express@4.22'],
])('in an empty project with %s, the examples of docs/embedding.md', (version, dependency) => {
  const project = join(folder, version.replace(' ', ''));
  const children: ChildProcess[] = [];

  beforeAll(() => {
    mkdirSync(project);
    writeFileSync(join(project, 'package.json'), '{"private":true,"type":"module"}');
    const flags = ['--prefer-offline', '--no-audit', '--no-fund', '--loglevel=error'];
    execFileSync('npm', ['install', ...flags, tarball, dependency], { cwd: project, env, stdio: 'pipe' });
  }, 180_000);
  afterAll(() => {
    for (const child of children) child.kill('SIGKILL');
  });

  async function start(name: string, port: number): Promise<ChildProcess> {
    writeFileSync(join(project, `${name}.js`), exampleOf(name));
    const variables = { PORT: String(port), BACKEND: sandbox.url, KEYS: writeKeys(project) };
    const child = track(
      spawn(process.execPath, [`${name}.js`], {
        cwd: project,
        env: { ...env, ...variables },
        stdio: ['ignore', 'pipe', 'inherit'],
      }),
    );
    children.push(child);
    await new Promise<void>((resolve, reject) => {
      createInterface({ input: child.stdout as NodeJS.ReadableStream }).on('line', (line) => {
        if (line === 'listening') resolve();
      });
      child.once('exit', (code) => reject(new Error(`${name}.js ended with ${code}`)));
    });
    return child;
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

  it('proxy: no second payout when the backend executes and then resets', async () => {
    const port = await freePort();
    await start('proxy', port);
    const key = `proxy-${version}`;
    const headers = {
      authorization: 'Bearer sk_sandbox_alpha',
      'x-tenant': 'M-ALPHA',
      'idempotency-key': key,
      'x-sandbox-fault': 'execute-then-reset',
    };
    expect((await pay(port, '/v1/index.php', headers)).status).toBe(502);
    expect((await pay(port, '/v1/index.php', headers)).status).toBe(409);
    expect(sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('handler: killed between two requests, it replays; a refusal frees the key', async () => {
    const port = await freePort();
    const child = await start('handler', port);
    const headers = { 'x-tenant': 'M-ALPHA', 'idempotency-key': 'k-1' };
    expect((await pay(port, '/payouts', headers, '{"amount":0}')).status).toBe(422);
    expect((await pay(port, '/payouts', headers, '{"amount":10}')).status).toBe(201);
    child.kill('SIGKILL');
    await until(() => child.signalCode);
    await start('handler', port);
    const again = await pay(port, '/payouts', headers, '{"amount":10}');
    expect([again.status, again.headers['idempotent-replayed'], again.json()]).toEqual([
      201,
      'true',
      { paid: 10 },
    ]);
  });

  it('gateway: it serves, and ends at SIGTERM', async () => {
    const port = await freePort();
    const child = await start('gateway', port);
    const headers = { authorization: 'Bearer sk_sandbox_alpha', 'idempotency-key': `gateway-${version}` };
    expect((await pay(port, '/v1/index.php', headers)).status).toBe(201);
    expect((await pay(port, '/v1/index.php', headers)).headers['idempotent-replayed']).toBe('true');
    expect(sandbox.ledger.payouts({ key: `gateway-${version}` })).toBe(1);
    child.kill('SIGTERM');
    await until(() => child.exitCode === 0);
  });
});

it('serves the merchants’ interface on the admin port of an embedded gateway', () => {
  const project = join(folder, 'Express5');
  const config = {
    ...{ listen: { host: '127.0.0.1', port: 0 }, admin: { port: 0 }, upstream: { url: sandbox.url } },
    ...{ auth: { keys: { source: 'upstream' } }, log: { level: 'fatal' } },
    store: { kind: 'sqlite', path: './interface-data' },
  };
  writeFileSync(
    join(project, 'interface.js'),
    `import { createGateway } from 'oncegate';
    const gateway = await createGateway(${JSON.stringify(config)});
    const { adminPort } = await gateway.listen();
    const read = async (path) => await (await fetch('http://127.0.0.1:' + adminPort + path)).text();
    const script = /[^"]+swagger-ui-bundle[^"]+/.exec(await read('/docs'))[0];
    console.log(JSON.stringify([await read('/docs/openapi.yaml'), (await read(script)).length]));
    await gateway.close();`,
  );
  const said = execFileSync(process.execPath, ['interface.js'], { cwd: project, env, encoding: 'utf8' });
  const [document, scriptBytes] = JSON.parse(said);
  expect(document).toBe(readFileSync(join(ROOT, 'config/openapi.yaml'), 'utf8'));
  expect(scriptBytes).toBeGreaterThan(1_000_000);
});

it('installs no OpenTelemetry, and says what to install for tracing.endpoint', () => {
  const project = join(folder, 'Express5');
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
  const project = join(folder, 'Express5');
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
