import { keyLine } from '../auth/key-index.ts';
import { Exit, readArguments, required } from './arguments.ts';

const USAGE = `oncegate keys hash --id ID [--scope OPERATION]...

Reads a secret key from standard input and prints its line for the key file.
The environment variable ONCEGATE_PEPPER must have the value of the option auth.pepper.

  printf %s "$SECRET" | ONCEGATE_PEPPER=... oncegate keys hash --id 2026-11
`;

const OPTIONS = { id: { type: 'string' }, scope: { type: 'string', multiple: true } } as const;

const MAX_INPUT_BYTES = 4096;

export async function keys([action, ...args]: string[]): Promise<void> {
  if (action !== 'hash' && action !== '--help' && action !== '-h')
    throw new Exit(`the keys command needs an action: hash\n\n${USAGE}`, 64);
  const options = readArguments(action === 'hash' ? args : ['--help'], OPTIONS, USAGE);
  if (!options) return;
  const id = required(options.id, 'id', USAGE);
  const pepper = process.env.ONCEGATE_PEPPER ?? '';
  if (pepper.length < 16) throw new Exit('ONCEGATE_PEPPER must be set, with at least 16 characters', 78);
  const line = keyLine({ id, secret: await readSecret(), pepper, scopes: options.scope });
  process.stdout.write(`${line}\n`);
}

/** The secret key is one line. A newline after it is not part of the key. */
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
  if (secret === '') throw new Exit('standard input has no secret key', 64);
  return secret;
}
