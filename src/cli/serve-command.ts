import { loadConfig } from '../config/load.ts';
import { readArguments, required } from './arguments.ts';
import { serve, shutDownOnSignal } from './serve.ts';

const USAGE = `oncegate serve --config FILE

Runs the gateway until SIGTERM or SIGINT. See config/gateway.example.yaml for every option.
`;

export async function serveCommand(args: string[]): Promise<void> {
  const options = readArguments(args, { config: { type: 'string' } }, USAGE);
  if (!options) return;
  const running = await serve(loadConfig(required(options.config, 'config', USAGE), process.env));
  if (running) shutDownOnSignal(running);
}
