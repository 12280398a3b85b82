import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Login } from '../admin/tokens.ts';
import { loadConfig } from '../config/load.ts';
import type { Config } from '../config/schema.ts';
import { makeFolder } from '../lib/files.ts';
import { programFile } from '../lib/program.ts';
import { createSandbox, type Sandbox } from '../sandbox/create-sandbox.ts';
import { Exit, namingPort, portOf, readArguments, TEXT, type Terminal } from './arguments.ts';
import { type ServedGateway, serveFile, shutDownOnSignal, startGateway } from './serve.ts';

const USAGE = `oncegate start [--config FILE]

Without a configuration: starts the sandbox backend and a gateway in front of it, to try oncegate.
With one: the same as oncegate serve --config FILE, without a sandbox and without the options below.

  --port N            port of the gateway (default 8080; 0 selects a free port)
  --admin-port N      admin port (default 8081)
  --sandbox-port N    port of the sandbox backend (default 9000)
  --data DIR          folder of the records and of the sandbox's ledger (default ./data)
  --fault LIST        what the sandbox does wrong with every request that has an idempotency key, such as execute-then-reset or
                      delay=3000; GET /_sandbox/faults on the sandbox's port lists them (default: nothing)
`;

const SANDBOX_OPTIONS = { port: TEXT, 'admin-port': TEXT, 'sandbox-port': TEXT, data: TEXT, fault: TEXT };
const OPTIONS = { config: TEXT, ...SANDBOX_OPTIONS };

type SandboxArguments = { [Name in keyof typeof SANDBOX_OPTIONS]?: string };

/** The sandbox's files, which are in the package too: the command works in any folder. */
const SANDBOX_FOLDER = fileURLToPath(programFile('sandbox/'));

/** Runs what `serve` runs, with a configuration. Without one, runs the sandbox and a gateway in front of it. */
export async function start(args: string[], terminal: Terminal): Promise<void> {
  const options = readArguments(args, OPTIONS, USAGE);
  const { config, ...sandboxOptions } = options;
  if (config === undefined) return await startWithSandbox(sandboxOptions, terminal);
  const names = Object.keys(sandboxOptions);
  if (names.length > 0) {
    throw new Exit(`--${names.join(', --')} cannot be used together with --config\n\n${USAGE}`, 64);
  }
  await serveFile(config, terminal.env);
}

async function startWithSandbox(options: SandboxArguments, { stdout, env }: Terminal): Promise<void> {
  const config = loadConfig(join(SANDBOX_FOLDER, 'gateway.yaml'), env);
  const data = options.data ?? './data';
  const ports = {
    gateway: portOf(options.port, config.listen.port),
    admin: portOf(options['admin-port'], config.admin.port),
    sandbox: portOf(options['sandbox-port'], 9000),
  };
  const named = namingPort({
    ...{ '--port': ports.gateway, '--admin-port': ports.admin, '--sandbox-port': ports.sandbox },
  });
  const sandbox = await openSandbox(data, ports.sandbox, options.fault).catch(named);
  const starting = startGateway(withArguments(config, data, sandbox.url, ports), { env }).catch(named);
  starting.catch(() => sandbox.close());
  shutDownOnSignal(starting, () => sandbox.close());
  const running = await starting;
  const link = (): string => {
    const code = running.sessions?.offer(LOGIN, () => stdout.write(`\nThe console's next link: ${link()}\n`));
    return `http://127.0.0.1:${running.adminPort}/console/#/login/${code}`;
  };
  stdout.write(tour(running, sandbox, link()));
}

/** Who opens the console by a link. */
const LOGIN: Login = { name: 'sandbox', may: ['read', 'resolve', 'bodies'] };

/** The configuration in sandbox/gateway.yaml, with the ports and the folder of the command line. */
function withArguments(
  config: Config,
  data: string,
  url: string,
  ports: { gateway: number; admin: number },
): Config {
  return {
    ...config,
    listen: { ...config.listen, port: ports.gateway },
    // A token turns the console on. Nobody learns this one: each link that is printed logs in once.
    admin: {
      ...{ ...config.admin, port: ports.admin },
      tokens: [{ name: LOGIN.name, token: randomBytes(32).toString('hex'), may: [] }],
    },
    upstream: { ...config.upstream, url },
    store: { kind: 'sqlite', path: data, timeoutMs: config.store.timeoutMs },
    auth: { ...config.auth, keys: { source: 'file', path: join(SANDBOX_FOLDER, 'keys.yaml') } },
  };
}

async function openSandbox(data: string, port: number, fault: string | undefined): Promise<Sandbox> {
  try {
    makeFolder(data);
  } catch (error) {
    throw new Exit(`the data folder ${data} cannot be used: ${(error as NodeJS.ErrnoException).code}`, 1);
  }
  const databasePath = join(data, 'sandbox-ledger.sqlite');
  return await createSandbox({ port, databasePath, usualFaults: fault });
}

/** What the command prints when it is ready: the addresses, and commands to try. */
function tour({ port, adminPort }: ServedGateway, sandbox: Sandbox, link: string): string {
  const gateway = `http://127.0.0.1:${port}`;
  const withdraw = `curl -i ${gateway}/v1/index.php -H 'Authorization: Bearer sk_sandbox_alpha' -H 'Content-Type: application/json' -H 'x-service-idempotency: order-1001' -d '{"action":"withdraw","amount":125.50,"bank_code":"058","account_number":"0123456789"}'`;
  return `
oncegate is ready (process ${process.pid}; stop it with Ctrl-C)

  gateway  ${gateway}
  sandbox  ${sandbox.url}  (the backend; see its ledger with: curl -s ${sandbox.url}/_sandbox/ledger)
  admin    http://127.0.0.1:${adminPort}  (/healthz, /readyz, /metrics)
  console  ${link}
           (the link logs in once; then another one is printed here)

1. Read a balance:

curl -i ${gateway}/v2/get_balance -H 'Authorization: Bearer sk_sandbox_alpha'

2. Withdraw, with an idempotency key:

${withdraw}

3. Send it again. The answer is the same, with Idempotent-Replayed: true, and the ledger still has one payout:

${withdraw}

`;
}
