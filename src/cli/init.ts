import { randomBytes } from 'node:crypto';
import { existsSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { firstConfig } from '../config/first.ts';
import { parseConfig } from '../config/load.ts';
import { makeFolder } from '../lib/files.ts';
import { Exit, readArguments, required, TEXT, type Terminal } from './arguments.ts';
import { issue } from './keys/change.ts';

const USAGE = `oncegate init --backend URL [--keys file|upstream] [--merchant CODE] [--forward keep|strip|replace] [--folder DIR]

Writes a first configuration (gateway.yaml), the secrets that it takes from the environment (secrets.env), and a key file with one secret
key (keys.yaml), and prints that secret key and what to run next. It overwrites nothing. On a terminal it asks for what is missing.

  --backend URL    address of the backend, such as http://payments.internal:9000
  --keys WHERE     file: the gateway has the secret keys of merchants, and issues new ones (default). upstream: the backend has them, and
                   says whose they are
  --merchant CODE  with --keys file: the code of the merchant who gets the first secret key
  --forward HOW    the Authorization that the backend gets: none (strip, the default with --keys file), that of the merchant (keep, the
                   default with --keys upstream), or a credential of the gateway (replace). docs/backend.md explains them
  --folder DIR     where to write (default: the current folder)
`;

const OPTIONS = { backend: TEXT, keys: TEXT, merchant: TEXT, forward: TEXT, folder: TEXT };

type Options = { [Name in keyof typeof OPTIONS]?: string };

const newSecret = (): string => randomBytes(32).toString('hex');

export async function init(args: string[], terminal: Terminal): Promise<void> {
  const options: Options = readArguments(args, OPTIONS, USAGE);
  const folder = resolve(options.folder ?? '.');
  const [file, secretsFile, keyFile] = ['gateway.yaml', 'secrets.env', 'keys.yaml'].map((name) =>
    join(folder, name),
  ) as [string, string, string];
  for (const path of [file, secretsFile, keyFile])
    if (existsSync(path))
      throw new Exit(`${path} exists, and init overwrites nothing: --folder names another folder`, 1);

  const { backend, merchant, forward } = await askFor(options, terminal);
  const pepper = newSecret();
  const secrets = {
    ONCEGATE_ADMIN_TOKEN: newSecret(),
    ...(merchant !== undefined && { ONCEGATE_PEPPER: pepper }),
    // Quoted, because the shell that reads the file would split a scheme from its token.
    ...(forward === 'replace' && { BACKEND_AUTHORIZATION: "''" }),
  };
  const dataFolder = join(folder, 'data');
  const ofMerchants = merchant === undefined ? undefined : keyFile;
  const text = firstConfig({ backend, forward, dataFolder, keyFile: ofMerchants });
  // A mistake is found before anything is written.
  parseConfig(text, { ...secrets, BACKEND_AUTHORIZATION: 'Bearer a' }, file);
  makeFolder(folder);
  if (merchant !== undefined) {
    const withPepper = { ...terminal, env: { ONCEGATE_PEPPER: pepper } };
    await issue(['--file', keyFile, '--merchant', merchant], withPepper, USAGE);
  }
  writeFileSync(file, text, { flag: 'wx' });
  const lines = Object.entries(secrets).map(([name, value]) => `${name}=${value}\n`);
  writeFileSync(secretsFile, lines.join(''), { flag: 'wx', mode: 0o600 });
  terminal.stderr.write(`
Run next${forward === 'replace' ? `, after you have written BACKEND_AUTHORIZATION into ${secretsFile}` : ''}:

  set -a; . ${secretsFile}; set +a
  oncegate check --config ${file}
  oncegate serve --config ${file}
`);
}

/** Takes what the options do not say from the person at the terminal, or from the defaults. */
async function askFor(options: Options, { stdin, stderr }: Terminal) {
  const terminal = stdin.isTTY ? createInterface({ input: stdin }) : undefined;
  const lines = terminal?.[Symbol.asyncIterator]();
  const ask = async (name: keyof Options, question: string, byDefault?: string): Promise<string> => {
    let answer = options[name];
    if (answer === undefined && lines) {
      stderr.write(`${question}${byDefault === undefined ? '' : ` [${byDefault}]`}: `);
      answer = (await lines.next()).value?.trim();
    }
    return required(answer || byDefault, name, USAGE);
  };
  const choose = async (words: string[], ...asked: Parameters<typeof ask>): Promise<string> => {
    const answer = await ask(...asked);
    if (words.includes(answer)) return answer;
    throw new Exit(`--${asked[0]} takes ${words.join(', ')}\n\n${USAGE}`, 64);
  };
  try {
    const backend = await ask('backend', 'Address of the backend, such as http://payments.internal:9000');
    const who = 'Who has the secret keys of merchants? file: the gateway; upstream: the backend';
    const isFile = (await choose(['file', 'upstream'], 'keys', who, 'file')) === 'file';
    const merchant = isFile ? await ask('merchant', 'Code of the first merchant') : undefined;
    const what =
      'Authorization for the backend? strip: none; keep: the merchant’s; replace: the gateway’s own';
    const byDefault = isFile ? 'strip' : 'keep';
    const forward = await choose(['keep', 'strip', 'replace'], 'forward', what, byDefault);
    return { backend, merchant, forward };
  } finally {
    terminal?.close();
  }
}
