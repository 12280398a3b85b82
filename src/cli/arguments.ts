import { userInfo } from 'node:os';
import type { Readable, Writable } from 'node:stream';
import { type ParseArgsOptionsConfig, parseArgs } from 'node:util';
import type { ResolutionNote } from '../store/doubts.ts';

/** What a command reads and writes: `process`, or what a test gives it. */
export interface Terminal {
  /** `isTTY`: a person can answer questions. */
  stdin: Readable & { isTTY?: boolean };
  stdout: Writable;
  stderr: Writable;
  env: NodeJS.ProcessEnv;
}

/** An option with a value, and one without. */
export const TEXT = { type: 'string' } as const;
export const FLAG = { type: 'boolean' } as const;

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

/** Ends the command with its usage on standard output, as `--help` asks. The message is the usage. */
export class Help extends Error {
  override readonly name = 'Help';
}

/**
 * The message for the operator and the exit code, for any error that ends a command. It compares names and not classes:
 * importing the classes would load their modules for every command.
 */
export function explainFailure(error: unknown): { message: string; code: number } {
  if (error instanceof Exit) return error;
  const { code, message, name, address, port, options } = error as PortError;
  if (name === 'ConfigError' || name === 'SocketRefused') return { message, code: 78 };
  const from = options ? ` (${options})` : '';
  if (code === 'EADDRINUSE')
    return { message: `port ${port} on ${address} is in use by another process${from}`, code: 1 };
  if (code === 'EACCES' && port !== undefined)
    return { message: `port ${port} may not be used by this user${from}`, code: 1 };
  if (name === 'StoreUnavailable') return { message, code: 69 };
  return { message, code: 1 };
}

type PortError = NodeJS.ErrnoException & { address?: string; port?: number; options?: string };

/**
 * Adds the names of the options that set a port to the error of a server that cannot listen on it.
 *
 * @param ports by the names of their options
 */
export function namingPort(ports: Record<string, number>): (error: PortError) => never {
  return (error) => {
    const options = Object.keys(ports).filter((option) => ports[option] === error.port);
    throw Object.assign(error, { options: options.join(' and ') });
  };
}

/**
 * Reads the options of a command.
 *
 * @throws {Help} for `--help`
 * @throws {Exit} 64 for an argument that the command does not have
 */
export function readArguments<T extends ParseArgsOptionsConfig>(args: string[], options: T, usage: string) {
  const values = valuesOf(args, { ...options, help: { type: 'boolean', short: 'h' } as const }, usage);
  if ((values as { help?: boolean }).help) throw new Help(usage);
  return values;
}

function valuesOf<T extends ParseArgsOptionsConfig>(args: string[], options: T, usage: string) {
  try {
    return parseArgs({ args, options, strict: true }).values;
  } catch (error) {
    throw new Exit(`${(error as Error).message}\n\n${usage}`, 64);
  }
}

/** @throws {Exit} 64 if the option is missing or empty */
export function required(value: unknown, name: string, usage: string): string {
  if (typeof value === 'string' && value !== '') return value;
  throw new Exit(`--${name} is missing\n\n${usage}`, 64);
}

/** Who acts, and why: the options `--by` and `--reason`. @throws {Exit} 64 if there is no reason */
export const noteOfOptions = (
  { by, reason }: { by?: string; reason?: string },
  usage: string,
): ResolutionNote => ({
  by: by ?? nameOfUser(),
  reason: required(reason, 'reason', usage),
});

/** In a container, a user may have a number only. */
function nameOfUser(): string {
  try {
    return userInfo().username;
  } catch {
    return `uid ${process.getuid?.()}`;
  }
}

/** @throws {Exit} 64 if the option is set and is not a port */
export function portOf(text: string | undefined, byDefault: number): number {
  if (text === undefined) return byDefault;
  if (/^\d{1,5}$/.test(text) && Number(text) <= 65_535) return Number(text);
  throw new Exit(`${JSON.stringify(text)} is not a port`, 64);
}

/** A command, or an action of one. */
export type Action = (args: string[], terminal: Terminal) => Promise<void>;

/** A command whose first argument names one of these actions. */
export function commandOf(name: string, actions: Record<string, Action>, usage: string): Action {
  return async ([action = '', ...args], terminal) =>
    await actionOf(actions, action, name, usage)(args, terminal);
}

/**
 * The action that the first argument of a command names.
 *
 * @throws {Help} for `--help`
 * @throws {Exit} 64 if the command has no such action
 */
export function actionOf<T>(actions: Record<string, T>, name: string, command: string, usage: string): T {
  if (name === '--help' || name === '-h') throw new Help(usage);
  const action = Object.hasOwn(actions, name) ? actions[name] : undefined;
  if (action) return action;
  const names = Object.keys(actions).join(', ');
  throw new Exit(`the ${command} command needs an action: ${names}\n\n${usage}`, 64);
}
