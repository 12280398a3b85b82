import { isIPv6 } from 'node:net';
import { adminAddressIn, loadConfig } from '../config/load.ts';
import { Exit, readArguments, required, TEXT, type Terminal } from './arguments.ts';

const USAGE = `oncegate health --config FILE

Asks the gateway that runs with this configuration on this machine for /healthz, at admin.host and admin.port. It is the health check
of the image. A gateway that answers is well, even if its file has got a mistake since it was read.

Exit codes: 0 the gateway answers, 1 it does not, 78 it does not, and the configuration is wrong.
`;

/** Less than the health check of the image may take, so that it says what is wrong. */
const WITHIN_MS = 2000;

/** Where a gateway that listens on all addresses is asked. */
const LOOPBACK: Record<string, string> = { '0.0.0.0': '127.0.0.1', '::': '::1' };

export async function health(args: string[], { env, stdout }: Terminal): Promise<void> {
  const options = readArguments(args, { config: TEXT }, USAGE);
  const file = required(options.config, 'config', USAGE);
  let mistake: unknown;
  let address = adminAddressIn(file, env);
  try {
    address = loadConfig(file, env).admin;
  } catch (error) {
    mistake = error;
  }
  // While the gateway runs with an earlier version of the file, an orchestrator must not restart it: it could not start again.
  const answer = await ask(address).catch((error: unknown) => {
    throw mistake ?? error;
  });
  stdout.write(answer);
}

async function ask({ host, port }: { host: string; port: number }): Promise<string> {
  if (port === 0) throw new Exit('admin.port is 0, any free port, so it is not known which one to ask', 1);
  const address = LOOPBACK[host] ?? host;
  const url = `http://${isIPv6(address) ? `[${address}]` : address}:${port}/healthz`;
  const answer = await fetch(url, { signal: AbortSignal.timeout(WITHIN_MS) }).catch((error: Error) => {
    const { code, message } = (error.cause ?? error) as NodeJS.ErrnoException;
    // The code of a time limit is a number.
    throw new Exit(`${url}: ${typeof code === 'string' ? code : message}`, 1);
  });
  if (!answer.ok) throw new Exit(`${url}: ${answer.status}`, 1);
  return `${url}: ${await answer.text()}\n`;
}
