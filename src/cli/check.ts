import { loadConfig } from '../config/load.ts';
import { Gateway } from '../gateway/gateway.ts';
import { systemClock } from '../kernel/clock.ts';
import { createLogger } from '../observability/logger.ts';
import { readArguments, required } from './arguments.ts';
import { Exit, explainFailure } from './exit.ts';

const USAGE = `oncegate check --config FILE

Reads the configuration, opens the store and the keys that it names, and looks whether the backend can be reached.
Exit codes: 0 all is well (there may be warnings), 1 something is not, 78 the configuration is wrong.
`;

export async function check(args: string[]): Promise<void> {
  const options = readArguments(args, { config: { type: 'string' } }, USAGE);
  if (!options) return;
  const config = loadConfig(required(options.config, 'config', USAGE), process.env);
  const gateway = await Gateway.open(config, { clock: systemClock, logger: createLogger('silent') }).catch(
    (error: unknown) => {
      throw new Exit(explainFailure(error).message, 1);
    },
  );
  const checks = (await gateway.checks()).filter(({ name }) => name !== 'draining');
  await gateway.shutdownNow();
  for (const { name, ok, detail, warnings = [] } of checks) {
    process.stdout.write(`${ok ? 'ok  ' : 'FAIL'} ${name}: ${detail}\n`);
    for (const warning of warnings) process.stdout.write(`warn ${name}: ${warning}\n`);
  }
  const failed = checks.filter(({ ok }) => !ok);
  if (failed.length > 0) throw new Exit(`not ready: ${failed.map(({ name }) => name).join(', ')}`, 1);
}
