import { parseArgs } from 'node:util';
import { createSandbox, SANDBOX_MERCHANTS, type Sandbox, type SandboxOptions } from './sandbox.ts';

const HELP = `oncegate sandbox [options]

Runs the reference backend: a payments service with a real ledger and without any idempotency.
It prints one line of JSON when it is ready, and stops on SIGTERM or SIGINT.

  --host HOST            address to listen on (default 127.0.0.1)
  --port PORT            port to listen on (default 9000; 0 selects a free port)
  --db FILE              file of the ledger (default: in memory, lost when the process ends)
  --keep-alive-ms MS     close a connection that has been idle for MS milliseconds
  --fault LIST           apply these faults to requests with an idempotency key and without an X-Sandbox-Fault header
  --no-faults            ignore the X-Sandbox-Fault header, and --fault
  --lookup               serve GET /v1/transactions?merchant=&key= to requests with the bearer token that is in the
                         environment variable SANDBOX_LOOKUP_TOKEN
  --log                  print one line of JSON for each request
  --help                 print this help

Merchants and their secret keys:
${SANDBOX_MERCHANTS.map(({ code, secrets }) => `  ${code.padEnd(22)} ${secrets.join(', ')}`).join('\n')}

To see what it did: GET /_sandbox/ledger, /_sandbox/requests, /_sandbox/faults, /_sandbox/last-upgrade
`;

const EXIT_USAGE = 2;
const EXIT_FAILURE = 1;

type Command = { readonly help: true } | { readonly help: false; readonly options: SandboxOptions };

function commandOf(args: string[]): Command {
  const { values } = parseArgs({
    args,
    options: {
      host: { type: 'string' },
      port: { type: 'string' },
      db: { type: 'string' },
      'keep-alive-ms': { type: 'string' },
      fault: { type: 'string' },
      'no-faults': { type: 'boolean' },
      lookup: { type: 'boolean' },
      log: { type: 'boolean' },
      help: { type: 'boolean' },
    },
  });
  if (values.help === true) return { help: true };
  return {
    help: false,
    options: {
      ...(values.host === undefined ? {} : { host: values.host }),
      ...(values.port === undefined ? {} : { port: wholeNumber('--port', values.port, 65_535) }),
      ...(values.db === undefined ? {} : { databasePath: values.db }),
      ...(values['keep-alive-ms'] === undefined
        ? {}
        : { keepAliveTimeoutMs: wholeNumber('--keep-alive-ms', values['keep-alive-ms'], 3_600_000) }),
      ...(values.fault === undefined ? {} : { usualFaults: values.fault }),
      ...(values.lookup === true ? { lookupToken: lookupToken() } : {}),
      ...(values.log === true ? { log: print } : {}),
      faults: values['no-faults'] !== true,
    },
  };
}

/** Read from the environment, because every user of the machine can read a command line. */
function lookupToken(): string {
  const token = process.env.SANDBOX_LOOKUP_TOKEN;
  if (!token) throw new Error('--lookup needs SANDBOX_LOOKUP_TOKEN in the environment');
  return token;
}

function wholeNumber(flag: string, text: string, max: number): number {
  if (/^\d{1,9}$/.test(text) && Number(text) <= max) return Number(text);
  throw new Error(`${flag} takes a whole number from 0 to ${max}, not ${JSON.stringify(text)}`);
}

function print(line: object): void {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

function fail(error: unknown, exitCode: number): void {
  const message = error instanceof Error ? error.message : String(error);
  process.stderr.write(`${message.startsWith('sandbox: ') ? '' : 'sandbox: '}${message}\n`);
  process.exitCode = exitCode;
}

function stopOnSignal(sandbox: Sandbox): void {
  const stop = (): void => void sandbox.close().catch((error: unknown) => fail(error, EXIT_FAILURE));
  process.once('SIGTERM', stop);
  process.once('SIGINT', stop);
}

async function run(options: SandboxOptions): Promise<void> {
  try {
    const sandbox = await createSandbox(options);
    stopOnSignal(sandbox);
    print({ sandbox: 'listening', url: sandbox.url });
  } catch (error) {
    fail(error, EXIT_FAILURE);
  }
}

/** Runs the sandbox as a command. Errors are written to standard error and set the exit code. */
export async function runSandbox(args: string[]): Promise<void> {
  try {
    const command = commandOf(args);
    if (command.help) process.stdout.write(HELP);
    else await run(command.options);
  } catch (error) {
    fail(error, EXIT_USAGE);
    process.stderr.write('sandbox: --help shows the options\n');
  }
}

// src/main.ts imports this file for `oncegate sandbox`, and runs the command itself.
if (import.meta.main) await runSandbox(process.argv.slice(2));
