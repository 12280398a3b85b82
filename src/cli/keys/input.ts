import { readFileSync } from 'node:fs';
import * as z from 'zod';
import { durationMs } from '../../config/duration.ts';
import { isSecret } from '../../keys/authorization-header.ts';
import { type KeyFile, parseKeyFile } from '../../keys/key-file.ts';
import { BUILT_IN_SCOPES } from '../../keys/key-source.ts';
import { isMistyped, MISTYPED } from '../../keys/secret-key.ts';
import { Exit, TEXT, type Terminal } from '../arguments.ts';

/** The options that say where the key file is. */
export const PLACE_OPTIONS = { config: TEXT, file: TEXT };

const DEFAULT_FILE = './keys.yaml';

/** A key file, and what a configuration says about it, if one was named. */
interface Place {
  path: string;
  pepper?: string | undefined;
  /** The names of the operations. */
  operations?: readonly string[];
}

/**
 * The key file that a command reads or changes.
 *
 * @throws {Exit} if `--config` names a configuration without a key file
 */
export async function placeOf(
  { config, file }: { config?: string | undefined; file?: string | undefined },
  { env }: Terminal,
  usage: string,
): Promise<Place> {
  if (config === undefined) return { path: file ?? DEFAULT_FILE };
  if (file !== undefined) throw new Exit(`name one of --config and --file\n\n${usage}`, 64);
  // Commands with --file do not need it, and loading it takes time.
  const { loadConfig } = await import('../../config/load.ts');
  const { auth, operations } = loadConfig(config, env);
  const { keys, pepper } = auth;
  if (keys.source === 'file')
    return { path: keys.path, pepper, operations: operations.map(({ name }) => name) };
  throw new Exit(
    `${config} has auth.keys.source: upstream: the backend has the keys, and there is no list`,
    78,
  );
}

/** @throws {Exit} if there is no `auth.pepper`, and no ONCEGATE_PEPPER */
export function pepperOf(place: { pepper?: string | undefined }, { env }: Terminal): string {
  const pepper = place.pepper ?? env.ONCEGATE_PEPPER ?? '';
  if (pepper.length < 16) throw new Exit('ONCEGATE_PEPPER must be set, with at least 16 characters', 78);
  return pepper;
}

/**
 * Looks for the scopes of a new secret key among the operations. A key with a misspelt scope gets 403.
 *
 * @throws {Exit} for a scope that no operation has
 */
export function checkScopes(
  scopes: readonly string[] | undefined,
  { operations }: Place,
  terminal: Terminal,
): void {
  if (!scopes) return;
  if (!operations) {
    terminal.stderr.write('the scopes were not compared with any operations: --config FILE does so\n');
    return;
  }
  const known = [...operations, ...BUILT_IN_SCOPES];
  const unknown = scopes.find((scope) => !known.includes(scope));
  if (unknown !== undefined)
    throw new Exit(`no operation has the scope ${JSON.stringify(unknown)}: there are ${known.join(', ')}`, 1);
}

/** @throws {Exit} if the file cannot be read */
export function readKeys(path: string): KeyFile {
  let bytes: Buffer;
  try {
    bytes = readFileSync(path);
  } catch (error) {
    throw new Exit(`${path} cannot be read (${(error as NodeJS.ErrnoException).code})`, 78);
  }
  return parseKeyFile(bytes);
}

const MAX_INPUT_BYTES = 4096;

/**
 * A secret key from standard input: one line. A newline after it is not part of the key.
 *
 * @param from what the input is, for messages
 */
export async function readSecret(
  { stdin }: { stdin: AsyncIterable<Buffer | string> },
  from = 'standard input',
): Promise<string> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of stdin) {
    bytes += chunk.length;
    if (bytes > MAX_INPUT_BYTES) throw new Exit(`${from} is too long for a secret key`, 64);
    chunks.push(Buffer.from(chunk));
  }
  const secret = Buffer.concat(chunks)
    .toString('utf8')
    .replace(/\r?\n$/, '');
  if (secret === '') throw new Exit(`${from} has no secret key`, 64);
  if (!isSecret(secret))
    throw new Exit('the secret key cannot be sent as a bearer token of at most 512 characters', 1);
  if (isMistyped(secret)) throw new Exit(`the secret key ${MISTYPED}`, 1);
  return secret;
}

const isoTime = z.iso.datetime({ offset: true });

/** An ISO 8601 time with a zone, or a duration from now, as an ISO 8601 time. @throws {Exit} 64 */
export function timeOf(text: string, option: string, nowMs: number): string {
  const fromNowMs = durationMs(text);
  const ms = fromNowMs === undefined ? parsedTime(text) : nowMs + fromNowMs;
  if (ms >= 0 && ms <= LATEST_MS) return new Date(ms).toISOString();
  throw new Exit(
    `--${option} takes a time such as 2027-01-31T00:00:00Z, or a duration such as 30d or 24h`,
    64,
  );
}

const LATEST_MS = Date.UTC(9999, 11, 31);

const parsedTime = (text: string): number =>
  isoTime.safeParse(text).success ? Date.parse(text) : Number.NaN;
