import { type ParseArgsOptionsConfig, parseArgs } from 'node:util';
import { Exit } from './exit.ts';

/**
 * Reads a command's options; `--help` prints the usage and gives undefined.
 *
 * @throws {Exit} 64 for anything that is not an option of the command
 */
export function readArguments<T extends ParseArgsOptionsConfig>(args: string[], options: T, usage: string) {
  try {
    const { values } = parseArgs({
      args,
      options: { ...options, help: { type: 'boolean', short: 'h' } },
      strict: true,
    });
    if ((values as { help?: boolean }).help) {
      process.stdout.write(usage);
      return undefined;
    }
    return values;
  } catch (error) {
    throw new Exit(`${(error as Error).message}\n\n${usage}`, 64);
  }
}

/** @throws {Exit} 64 where the option is missing */
export function required(value: unknown, name: string, usage: string): string {
  if (typeof value === 'string' && value !== '') return value;
  throw new Exit(`--${name} is missing\n\n${usage}`, 64);
}
