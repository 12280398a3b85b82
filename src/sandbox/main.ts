import type { Writable } from 'node:stream';
import { parseArgs } from 'node:util';
import { SANDBOX_MERCHANTS } from './merchants.ts';
import { createSandbox, type SandboxOptions } from './sandbox.ts';

const HELP = `oncegate sandbox [options]

Runs the reference backend: a payments service with a ledger and without any idempotency.
It prints one line of JSON when it is ready, and stops on SIGTERM or SIGINT.

  --host HOST            address to listen on (default 127.0.0.1)
  --port PORT            port to listen on (default 9000; 0 selects a free port)
  --db FILE              file of the ledger (default: in memory, lost when the process ends)
  --fault LIST           apply these faults to requests with an idempotency key and without an X-Sandbox-Fault header
  --lookup               serve GET /v1/transactions?merchant=&key= to requests with the bearer token that is in the
                         environment variable SANDBOX_LOOKUP_TOKEN
  --help                 print this help

Merchants and their secret keys:
${SANDBOX_MERCHANTS.map(({ code, secrets }) => `  ${code.padEnd(22)} ${secrets.join(', ')}`).join('\n')}

To see what it did: GET /_sandbox/ledger. GET /_sandbox/faults lists the faults.
`;

const EXIT_USAGE = 2;
const EXIT_FAILURE = 1;

const OPTIONS = {
  host: { type: 'string' },
  port: { type: 'string' },
  db: { type: 'string' },
  fault: { type: 'string' },
  lookup: { type: 'boolean' },
  help: { type: 'boolean' },
} as const;

/** What the command writes, and its environment: `process`, or what a test gives it. */
type Terminal = Pick<NodeJS.Process, 'env'> & Record<'stdout' | 'stderr', Writable>;

/** Undefined: print the help. */
function optionsOf(args: string[], env: NodeJS.ProcessEnv): SandboxOptions | undefined {
  const { host, port, db, fault, lookup, help } = parseArgs({ args, options: OPTIONS }).values;
  if (help) return undefined;
  return {
    host,
    port: port === undefined ? undefined : portOf(port),
    databasePath: db,
    usualFaults: fault,
    lookupToken: lookup ? lookupToken(env) : undefined,
  };
}

/** Read from the environment, because every user of the machine can read a command line. */
function lookupToken({ SANDBOX_LOOKUP_TOKEN: token }: NodeJS.ProcessEnv): string {
  if (!token) throw new Error('--lookup needs SANDBOX_LOOKUP_TOKEN in the environment');
  return token;
}

function portOf(text: string): number {
  if (/^\d{1,5}$/.test(text) && Number(text) <= 65_535) return Number(text);
  throw new Error(`--port takes a whole number from 0 to 65535, not ${JSON.stringify(text)}`);
}

function fail({ stderr }: Terminal, error: unknown, exitCode: number): void {
  const message = error instanceof Error ? error.message : String(error);
  stderr.write(`${message.startsWith('sandbox: ') ? '' : 'sandbox: '}${message}\n`);
  process.exitCode = exitCode;
}

/** Runs the sandbox as a command. Errors are written to standard error and set the exit code. */
export async function runSandbox(args: string[], terminal: Terminal = process): Promise<void> {
  let options: SandboxOptions | undefined;
  try {
    options = optionsOf(args, terminal.env);
  } catch (error) {
    fail(terminal, error, EXIT_USAGE);
    terminal.stderr.write('sandbox: --help shows the options\n');
    return;
  }
  if (!options) {
    terminal.stdout.write(HELP);
    return;
  }
  try {
    const sandbox = await createSandbox(options);
    const stop = (): void =>
      void sandbox.close().catch((error: unknown) => fail(terminal, error, EXIT_FAILURE));
    process.once('SIGTERM', stop).once('SIGINT', stop);
    terminal.stdout.write(`${JSON.stringify({ sandbox: 'listening', url: sandbox.url })}\n`);
  } catch (error) {
    fail(terminal, error, EXIT_FAILURE);
  }
}

// src/main.ts imports this file for `oncegate sandbox`, and runs the command itself.
if (import.meta.main) void runSandbox(process.argv.slice(2));
