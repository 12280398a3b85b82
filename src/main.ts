#!/usr/bin/env node
import cluster from 'node:cluster';

/** Older versions drop header lines of a request, which allows request smuggling. */
const OLDEST_NODE = { major: 24, minor: 18 };

const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
if (major < OLDEST_NODE.major || (major === OLDEST_NODE.major && minor < OLDEST_NODE.minor)) {
  const needed = `Node ${OLDEST_NODE.major}.${OLDEST_NODE.minor} or newer is needed`;
  process.stderr.write(`oncegate: ${needed}, and ${process.execPath} is Node ${process.versions.node}.\n`);
  process.exit(1);
}

const USAGE = `oncegate: one merchant, one idempotency key, one execution.

  oncegate serve --config FILE     run the gateway
  oncegate check --config FILE     check a configuration, its store, keys and ports, and the backend
  oncegate config print            print the configuration in force, without secrets (see: oncegate config --help)
  oncegate keys ACTION             issue, list, rotate and revoke secret keys (see: oncegate keys --help)
  oncegate records ACTION          list and show records, resolve keys, purge responses (see: oncegate records --help)
  oncegate sandbox [options]       run the sandbox backend (see: oncegate sandbox --help)
  oncegate start [options]         run the sandbox and a gateway in front of it (see: oncegate start --help)

Every command takes --help. oncegate --version prints the version.
`;

type Command = (args: string[]) => Promise<void>;

/** Loads a command only when it is called. The check above runs first, so an old Node never parses their syntax. */
const COMMANDS: Record<string, () => Promise<Command>> = {
  serve: async () => (await import('./cli/serve.ts')).serve,
  check: async () => (await import('./cli/check.ts')).check,
  config: async () => (await import('./cli/config.ts')).config,
  keys: async () => (await import('./cli/keys/keys.ts')).keys,
  records: async () => (await import('./cli/records/records.ts')).records,
  sandbox: async () => (await import('./sandbox/main.ts')).runSandbox,
  start: async () => (await import('./cli/start.ts')).start,
};

const { Exit, explainFailure } = await import('./cli/arguments.ts');

/** @throws {Exit} with the message for the operator */
async function runCommand([name = '', ...args]: string[]): Promise<void> {
  if (['', '-h', '--help', 'help'].includes(name)) {
    process.stdout.write(USAGE);
    return;
  }
  if (name === '--version') {
    const { thisBuild } = await import('./kernel/build.ts');
    process.stdout.write(`${thisBuild().version}\n`);
    return;
  }
  const load = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined;
  if (!load) throw new Exit(`there is no command ${JSON.stringify(name)}\n\n${USAGE}`, 64);
  await (await load())(args);
}

try {
  await runCommand(process.argv.slice(2));
} catch (error) {
  const { message, code } = explainFailure(error);
  if (cluster.isWorker) await (await import('./workers/worker.ts')).reportFailure(message, code);
  else process.stderr.write(`${message.replace(/^/gm, 'oncegate: ')}\n`);
  process.exit(code);
}
