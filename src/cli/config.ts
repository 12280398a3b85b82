import { loadConfig } from '../config/load.ts';
import { maskedYaml } from '../config/masked.ts';
import { commandOf, readArguments, required, TEXT, type Terminal } from './arguments.ts';

const USAGE = `oncegate config print --config FILE

Prints the configuration as a gateway would use it: with its defaults, with the values from the environment, and without secrets.
`;

export const config = commandOf('config', { print }, USAGE);

async function print(args: string[], { env, stdout }: Terminal): Promise<void> {
  const options = readArguments(args, { config: TEXT }, USAGE);
  stdout.write(maskedYaml(loadConfig(required(options.config, 'config', USAGE), env)));
}
