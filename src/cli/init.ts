import { randomBytes } from 'node:crypto';
import { existsSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import * as z from 'zod';
import { upstreamOptions } from '../backend/upstream-options.ts';
import { firstConfig } from '../config/first.ts';
import { parseConfig } from '../config/load.ts';
import { keyName } from '../keys/key-file.ts';
import { makeFolder } from '../lib/files.ts';
import { Exit, readArguments, TEXT, type Terminal } from './arguments.ts';
import { issue } from './keys/change.ts';

const USAGE = `oncegate init --backend URL [--keys file|upstream] [--merchant CODE] [--forward keep|strip|replace]
              [--store sqlite|postgres|redis] [--folder DIR]

Writes a first configuration (gateway.yaml), the secrets that it takes from the environment (secrets.env), and a key file with one secret
key (keys.yaml), and prints that secret key and what to run next. It overwrites nothing. On a terminal it asks for what is missing.

  --backend URL    address of the backend, such as http://payments.internal:9000
  --keys WHERE     file: the gateway has the secret keys of merchants, and issues new ones (default). upstream: the backend has them, and
                   says whose they are
  --merchant CODE  with --keys file: the code of the merchant who gets the first secret key
  --forward HOW    the Authorization that the backend gets: none (strip, the default with --keys file), that of the merchant (keep, the
                   default with --keys upstream), or a credential of the gateway (replace). docs/backend.md explains them
  --store KIND     where records are kept: sqlite, for gateways on one machine (default); postgres or redis, for gateways on several
                   machines. You write the address of its server, with its password, into secrets.env
  --folder DIR     where to write (default: the current folder)
`;

const OPTIONS = { backend: TEXT, keys: TEXT, merchant: TEXT, forward: TEXT, store: TEXT, folder: TEXT };

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

  const { backend, merchant, forward, store } = await askFor(options, terminal);
  const pepper = newSecret();
  const secrets = {
    ONCEGATE_ADMIN_TOKEN: newSecret(),
    ...(merchant !== undefined && { ONCEGATE_PEPPER: pepper }),
    // Quoted, because the shell that reads the file would split a scheme from its token.
    ...(forward === 'replace' && { BACKEND_AUTHORIZATION: "''" }),
    ...(store !== 'sqlite' && { STORE_URL: "''" }),
  };
  const dataFolder = join(folder, 'data');
  const ofMerchants = merchant === undefined ? undefined : keyFile;
  const text = firstConfig({ backend, forward, store, dataFolder, keyFile: ofMerchants });
  // A mistake is found before anything is written.
  parseConfig(text, { ...secrets, BACKEND_AUTHORIZATION: 'Bearer a', STORE_URL: `${store}://a@b/0` }, file);
  makeFolder(folder);
  if (merchant !== undefined) {
    const withPepper = { ...terminal, env: { ONCEGATE_PEPPER: pepper } };
    await issue(['--file', keyFile, '--merchant', merchant], withPepper, USAGE);
  }
  writeFileSync(file, text, { flag: 'wx' });
  const lines = Object.entries(secrets).map(([name, value]) => `${name}=${value}\n`);
  writeFileSync(secretsFile, lines.join(''), { flag: 'wx', mode: 0o600 });
  const toWrite = ['BACKEND_AUTHORIZATION', 'STORE_URL'].filter((name) => Object.hasOwn(secrets, name));
  const form = store === 'sqlite' ? '' : ` (${store}://USER:PASSWORD@HOST:PORT/DATABASE)`;
  const secretKeyFile = join(folder, 'secret-key');
  terminal.stderr.write(`
Write the secret key of a merchant into ${secretKeyFile}, which nobody else may read. Without it, check cannot say
whether the backend accepts what it gets.${toWrite.length > 0 ? ` Write ${toWrite.join(' and ')}${form} into ${secretsFile}.` : ''} Run next:

  set -a; . ${secretsFile}; set +a${store === 'postgres' ? `\n  oncegate store prepare --config ${file}` : ''}
  oncegate check --config ${file} --secret-key-file ${secretKeyFile}
  oncegate serve --config ${file}
`);
}

const oneOf = (...words: string[]) => z.enum(words, `takes ${words.join(', ')}`);

/** Takes what the options do not say from the person at the terminal, or from the defaults. A wrong answer is asked for again. */
async function askFor(options: Options, { stdin, stderr }: Terminal) {
  const terminal = stdin.isTTY ? createInterface({ input: stdin }) : undefined;
  const lines = terminal?.[Symbol.asyncIterator]();
  const ask = async (
    name: keyof Options,
    question: string,
    allowed: z.ZodType,
    byDefault = '',
  ): Promise<string> => {
    const isAsked = options[name] === undefined && lines !== undefined;
    if (isAsked) stderr.write(`${question}${byDefault && ` [${byDefault}]`}: `);
    const line = isAsked ? await lines.next() : undefined;
    const value = line?.value?.trim() || options[name] || byDefault;
    const mistake = value === '' ? 'is missing' : allowed.safeParse(value).error?.issues[0]?.message;
    if (mistake === undefined) return value;
    if (!line || line.done) throw new Exit(`--${name} ${mistake}\n\n${USAGE}`, 64);
    stderr.write(`The answer ${mistake}.\n`);
    return await ask(name, question, allowed, byDefault);
  };
  try {
    const address = 'Address of the backend, such as http://payments.internal:9000';
    const backend = await ask('backend', address, upstreamOptions.shape.url);
    const who = 'Who has the secret keys of merchants? file: the gateway; upstream: the backend';
    const isFile = (await ask('keys', who, oneOf('file', 'upstream'), 'file')) === 'file';
    const merchant = isFile ? await ask('merchant', 'Code of the first merchant', keyName) : undefined;
    const what =
      'Authorization for the backend? strip: none; keep: the merchant’s; replace: the gateway’s own';
    const byDefault = isFile ? 'strip' : 'keep';
    const forward = await ask('forward', what, oneOf('keep', 'strip', 'replace'), byDefault);
    const store = options.store ?? 'sqlite';
    if (!['sqlite', 'postgres', 'redis'].includes(store))
      throw new Exit(`--store takes sqlite, postgres or redis\n\n${USAGE}`, 64);
    return { backend, merchant, forward, store };
  } finally {
    terminal?.close();
  }
}
