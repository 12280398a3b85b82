import { keyLine } from '../auth/key-line.ts';
import { readArguments, required } from './arguments.ts';
import { Exit } from './exit.ts';

const USAGE = `oncegate keys hash --id ID [--scope OPERATION]...

Reads a secret key from standard input and prints its line for the key file.
The pepper comes from the environment: ONCEGATE_PEPPER, the same as auth.pepper in the configuration.

  printf %s "$SECRET" | ONCEGATE_PEPPER=... oncegate keys hash --id 2026-11
`;

const MAX_INPUT_BYTES = 4096;

export async function keys([action, ...args]: string[]): Promise<void> {
  if (action !== 'hash' && action !== '--help' && action !== '-h')
    throw new Exit(`keys what?\n\n${USAGE}`, 64);
  const help = action === 'hash' ? args : ['--help'];
  const options = readArguments(
    help,
    { id: { type: 'string' }, scope: { type: 'string', multiple: true } },
    USAGE,
  );
  if (!options) return;
  const id = required(options.id, 'id', USAGE);
  const pepper = process.env.ONCEGATE_PEPPER ?? '';
  if (pepper.length < 16) throw new Exit('ONCEGATE_PEPPER must be set, with at least 16 characters', 78);
  const scopes = options.scope as string[] | undefined;
  process.stdout.write(`${keyLine({ id, secret: await readSecret(), pepper, scopes })}\n`);
}

/** One line; a newline at its end is not part of the secret. */
async function readSecret(): Promise<string> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of process.stdin as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (bytes > MAX_INPUT_BYTES) throw new Exit('standard input is too long for a secret key', 64);
    chunks.push(chunk);
  }
  const secret = Buffer.concat(chunks)
    .toString('utf8')
    .replace(/\r?\n$/, '');
  if (secret === '') throw new Exit('standard input holds no secret key', 64);
  return secret;
}
