import { Exit } from './exit.ts';

const USAGE = `oncegate: one merchant, one idempotency key, one execution.

  oncegate serve --config FILE     run the gateway
  oncegate check --config FILE     check a configuration, the store, keys and ports that it names, and the backend
  oncegate keys hash --id ID       turn a secret key from standard input into a line for the key file
  oncegate records ACTION          list and show records, resolve what is in doubt (see: oncegate records --help)
  oncegate sandbox [options]       run the sandbox backend (see: oncegate sandbox --help)
  oncegate start [options]         run sandbox and gateway together (see: oncegate start --help)

Every command takes --help.
`;

type Command = (args: string[]) => Promise<void>;

/** Each command is loaded only when it is called. */
const commands: Record<string, () => Promise<Command>> = {
  serve: async () => (await import('./serve-command.ts')).serveCommand,
  check: async () => (await import('./check.ts')).check,
  keys: async () => (await import('./keys.ts')).keys,
  records: async () => (await import('./records/records.ts')).records,
  sandbox: async () => (await import('./sandbox.ts')).sandbox,
  start: async () => (await import('./start.ts')).start,
};

/** @throws {Exit} with what to tell the operator */
export async function runCommand([name = '', ...args]: string[]): Promise<void> {
  if (['', '-h', '--help', 'help'].includes(name)) {
    process.stdout.write(USAGE);
    return;
  }
  const load = Object.hasOwn(commands, name) ? commands[name] : undefined;
  if (!load) throw new Exit(`there is no command ${JSON.stringify(name)}\n\n${USAGE}`, 64);
  await (await load())(args);
}
