import { type ParseArgsOptionsConfig, parseArgs } from 'node:util';

/** Ends the command with a message for the operator, without a stack trace. */
export class Exit extends Error {
  override readonly name = 'Exit';
  readonly code: number;
  /** @param code as in sysexits.h: 64 usage, 69 unavailable, 78 configuration; 1 otherwise */
  constructor(message: string, code: number) {
    super(message);
    this.code = code;
  }
}

/**
 * The message for the operator and the exit code, for any error that ends a command. It compares names and not classes:
 * importing the classes would load their rooms for every command.
 */
export function explainFailure(error: unknown): { message: string; code: number } {
  if (error instanceof Exit) return error;
  const { code, message, name, address, port } = error as NodeJS.ErrnoException & {
    address?: string;
    port?: number;
  };
  if (name === 'WorkerFailed') return { message, code: (error as { exitCode: number }).exitCode };
  if (name === 'ConfigError') return { message, code: 78 };
  if (code === 'EADDRINUSE')
    return { message: `port ${port} on ${address} is in use by another process`, code: 1 };
  if (code === 'EACCES' && port !== undefined)
    return { message: `port ${port} may not be used by this user`, code: 1 };
  if (name === 'StoreUnavailable' || name === 'KeysUnavailable') return { message, code: 69 };
  return { message, code: 1 };
}

/**
 * Reads the options of a command. For `--help`, prints the usage and returns undefined.
 *
 * @throws {Exit} 64 for an argument that the command does not have
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

/** @throws {Exit} 64 if the option is missing or empty */
export function required(value: unknown, name: string, usage: string): string {
  if (typeof value === 'string' && value !== '') return value;
  throw new Exit(`--${name} is missing\n\n${usage}`, 64);
}
