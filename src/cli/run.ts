import { type Action, Exit, explainFailure, Help, type Terminal } from './arguments.ts';

const USAGE = `oncegate: one merchant, one idempotency key, one execution.

  oncegate init [options]          write a first configuration and a secret key (see: oncegate init --help)
  oncegate serve --config FILE     run the gateway
  oncegate check --config FILE     check a configuration, its store, keys and ports, and the backend
  oncegate health --config FILE    ask the gateway that runs with a configuration whether it answers
  oncegate config print            print the configuration in force, without secrets (see: oncegate config --help)
  oncegate keys ACTION             issue, list, rotate and revoke secret keys (see: oncegate keys --help)
  oncegate records ACTION          list and show records, resolve keys, copy records (see: oncegate records --help)
  oncegate store ACTION            prepare a store, accept one that forgot keys (see: oncegate store --help)
  oncegate sandbox [options]       run the sandbox backend (see: oncegate sandbox --help)
  oncegate start [options]         run the sandbox and a gateway in front of it (see: oncegate start --help)

Every command takes --help. oncegate --version prints the version.
`;

/** Loads a command only when it is called. */
const COMMANDS: Record<string, () => Promise<Action>> = {
  init: async () => (await import('./init.ts')).init,
  serve: async () => (await import('./serve.ts')).serve,
  check: async () => (await import('./check.ts')).check,
  health: async () => (await import('./health.ts')).health,
  config: async () => (await import('./config.ts')).config,
  keys: async () => (await import('./keys/keys.ts')).keys,
  records: async () => (await import('./records/records.ts')).records,
  store: async () => (await import('./store.ts')).store,
  sandbox: async () => (await import('./sandbox.ts')).sandbox,
  start: async () => (await import('./start.ts')).start,
};

/** Runs the command that the arguments name. Resolves to the exit code; a gateway that was started runs on after that. */
export async function runCommand(args: string[], terminal: Terminal): Promise<number> {
  try {
    await run(args, terminal);
    return 0;
  } catch (error) {
    if (error instanceof Help) {
      terminal.stdout.write(error.message);
      return 0;
    }
    const { message, code } = explainFailure(error);
    terminal.stderr.write(`${message.replace(/^/gm, 'oncegate: ')}\n`);
    return code;
  }
}

/** @throws {Exit} with the message for the operator */
async function run([name = '', ...args]: string[], terminal: Terminal): Promise<void> {
  if (['', '-h', '--help', 'help'].includes(name)) throw new Help(USAGE);
  if (name === '--version') {
    const { thisBuild } = await import('../lib/program.ts');
    terminal.stdout.write(`${thisBuild().version}\n`);
    return;
  }
  const load = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined;
  if (!load) throw new Exit(`there is no command ${JSON.stringify(name)}\n\n${USAGE}`, 64);
  await (await load())(args, terminal);
}
