import { loadConfig } from '../config/load.ts';
import { maskedYaml } from '../config/masked.ts';
import { Exit, readArguments, required, type Terminal } from './arguments.ts';

const USAGE = `oncegate config print --config FILE

Prints the configuration as a gateway would use it: with its defaults, with the values from the environment, and without secrets.
`;

export async function config([action, ...args]: string[], terminal: Terminal): Promise<void> {
  if (action !== 'print' && action !== '--help' && action !== '-h')
    throw new Exit(`the config command needs an action: print\n\n${USAGE}`, 64);
  const options = readArguments(
    action === 'print' ? args : ['--help'],
    { config: { type: 'string' } },
    USAGE,
  );
  const loaded = loadConfig(required(options.config, 'config', USAGE), terminal.env);
  terminal.stdout.write(maskedYaml(loaded));
}
