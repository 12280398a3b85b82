import { createSandbox } from '../sandbox/create-sandbox.ts';
import { SANDBOX_MERCHANTS } from '../sandbox/merchants.ts';
import { Exit, FLAG, namingPort, portOf, readArguments, TEXT, type Terminal } from './arguments.ts';

const USAGE = `oncegate sandbox [options]

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

const OPTIONS = { host: TEXT, port: TEXT, db: TEXT, fault: TEXT, lookup: FLAG };

export async function sandbox(args: string[], { env, stdout }: Terminal): Promise<void> {
  const { host, port, db, fault, lookup } = readArguments(args, OPTIONS, USAGE);
  const wanted = portOf(port, 9000);
  const { url, close } = await createSandbox({
    ...{ host, port: wanted, databasePath: db, usualFaults: fault },
    lookupToken: lookup ? lookupToken(env) : undefined,
  }).catch(namingPort({ '--port': wanted }));
  process.once('SIGTERM', close).once('SIGINT', close);
  stdout.write(`${JSON.stringify({ sandbox: 'listening', url })}\n`);
}

/** Read from the environment, because every user of the machine can read a command line. */
function lookupToken({ SANDBOX_LOOKUP_TOKEN: token }: NodeJS.ProcessEnv): string {
  if (!token) throw new Exit('--lookup needs SANDBOX_LOOKUP_TOKEN in the environment', 64);
  return token;
}
