import { randomBytes } from 'node:crypto';
import { existsSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { parseConfig } from '../config/load.ts';
import { editKeyFile } from '../keys/key-file-editor.ts';
import { hashOf } from '../keys/key-index.ts';
import { newSecretKey } from '../keys/secret-key.ts';
import { makeFolder } from '../lib/files.ts';
import { Exit, readArguments, required, TEXT, type Terminal } from './arguments.ts';

const USAGE = `oncegate init --backend URL [--keys file|upstream] [--merchant CODE] [--forward keep|strip|replace] [--store sqlite|redis] [--folder DIR]

Writes a first configuration (gateway.yaml), the secrets that it takes from the environment (secrets.env), and a key file with one secret
key (keys.yaml), and prints that secret key and what to run next. It overwrites nothing. On a terminal it asks for the first four options.

  --backend URL    address of the backend, such as http://payments.internal:9000
  --keys WHERE     file: the gateway has the secret keys of merchants, and issues new ones (default). upstream: the backend has them, and
                   says whose they are
  --merchant CODE  with --keys file: the code of the merchant who gets the first secret key
  --forward HOW    the Authorization that the backend gets: none (strip, the default with --keys file), that of the merchant (keep, the
                   default with --keys upstream), or a credential of the gateway (replace). docs/backend.md explains them
  --store KIND     sqlite, in the folder data (default), or redis
  --folder DIR     where to write (default: the current folder)
`;

const OPTIONS = { backend: TEXT, keys: TEXT, merchant: TEXT, forward: TEXT, store: TEXT, folder: TEXT };

/** What the configuration shall say. */
interface Wishes {
  backend: string;
  keys: string;
  forward: string;
  store: string;
}

export async function init(args: string[], terminal: Terminal): Promise<void> {
  const options = readArguments(args, OPTIONS, USAGE);
  const folder = resolve(options.folder ?? '.');
  const files = { config: 'gateway.yaml', secrets: 'secrets.env', keys: 'keys.yaml' };
  const paths = Object.values(files).map((name) => join(folder, name));
  const there = paths.filter((path) => existsSync(path));
  if (there.length > 0)
    throw new Exit(
      `${there.join(', ')}: exists, and init overwrites nothing: --folder names another folder`,
      1,
    );
  const [configPath = '', secretsPath = '', keysPath = ''] = paths;

  const { wishes, merchant } = await askFor(options, terminal);
  const secrets: Record<string, string> = {
    ONCEGATE_ADMIN_TOKEN: randomBytes(32).toString('hex'),
    ...(merchant !== undefined && { ONCEGATE_PEPPER: randomBytes(32).toString('hex') }),
    ...(wishes.forward === 'replace' && { BACKEND_AUTHORIZATION: '' }),
    ...(wishes.store === 'redis' && { REDIS_URL: '' }),
  };
  const text = configText(wishes, folder, keysPath);
  // What is wrong in the options is said before anything is written.
  parseConfig(text, { ...secrets, BACKEND_AUTHORIZATION: 'Bearer a', REDIS_URL: 'redis://a' }, configPath);
  makeFolder(folder);
  let secretKey: string | undefined;
  if (merchant !== undefined) {
    const { ONCEGATE_PEPPER: pepper = '' } = secrets;
    const made = newSecretKey('live');
    const id = new Date().toISOString().slice(0, 10);
    editKeyFile(keysPath, (editor) => editor.add(merchant, { id, hash: hashOf(pepper, made) }), pepper);
    secretKey = made;
  }
  writeFileSync(configPath, text, { flag: 'wx' });
  const lines = Object.entries(secrets).map(([name, value]) => `${name}=${value}\n`);
  writeFileSync(secretsPath, lines.join(''), { flag: 'wx', mode: 0o600 });

  const empty = Object.keys(secrets).filter((name) => secrets[name] === '');
  const written = [configPath, secretsPath, ...(secretKey ? [keysPath] : [])];
  terminal.stderr.write(`Written: ${written.join(', ')}

Run next${empty.length > 0 ? `, after you have filled in ${empty.join(' and ')} in ${secretsPath}` : ''}:

  set -a; . ${secretsPath}; set +a
  oncegate check --config ${configPath}
  oncegate serve --config ${configPath}

${secretKey ? `The first secret key of ${merchant}, which is shown once:\n` : ''}`);
  // As with keys issue, the secret key alone goes to standard output.
  if (secretKey) terminal.stdout.write(`${secretKey}\n`);
}

/** Takes what the options do not say from the person at the terminal, or from the defaults. */
async function askFor(
  options: { [Name in keyof typeof OPTIONS]?: string },
  { stdin, stderr }: Terminal,
): Promise<{ wishes: Wishes; merchant: string | undefined }> {
  const lines = linesOf(stdin);
  const ask = async (name: keyof typeof OPTIONS, question: string, byDefault?: string): Promise<string> => {
    let answer = options[name];
    if (answer === undefined && stdin.isTTY) {
      stderr.write(`${question}${byDefault === undefined ? '' : ` [${byDefault}]`}: `);
      const { value } = await lines.next();
      answer = value?.trim();
    }
    return required(answer || byDefault, name, USAGE);
  };
  const oneOf = async (words: string[], ...asked: Parameters<typeof ask>): Promise<string> => {
    const answer = await ask(...asked);
    if (words.includes(answer)) return answer;
    throw new Exit(`--${asked[0]} takes ${words.join(', ')}\n\n${USAGE}`, 64);
  };
  try {
    const backend = await ask('backend', 'Address of the backend, such as http://payments.internal:9000');
    const where = 'Who has the secret keys of merchants? file: the gateway; upstream: the backend';
    const keys = await oneOf(['file', 'upstream'], 'keys', where, 'file');
    const isFile = keys === 'file';
    const merchant = isFile ? await ask('merchant', 'Code of the first merchant') : undefined;
    const how =
      'Authorization for the backend? strip: none; replace: a credential of the gateway; keep: that of the merchant';
    const forwards = ['keep', 'strip', 'replace'];
    const forward = await oneOf(forwards, 'forward', how, isFile ? 'strip' : 'keep');
    const store = options.store ?? 'sqlite';
    if (!['sqlite', 'redis'].includes(store)) throw new Exit(`--store takes sqlite, redis\n\n${USAGE}`, 64);
    return { wishes: { backend, keys, forward, store }, merchant };
  } finally {
    await lines.return(undefined);
  }
}

async function* linesOf(input: AsyncIterable<Buffer>): AsyncGenerator<string, undefined, undefined> {
  let rest = '';
  for await (const chunk of input) {
    const [...lines] = `${rest}${chunk}`.split('\n');
    rest = lines.pop() ?? '';
    yield* lines;
  }
  return undefined;
}

/** What each value of `auth.forward` means to the backend. */
const FORWARD: Record<string, string> = {
  keep: 'the backend gets the Authorization of the merchant, and has to accept it',
  strip: 'the backend gets no Authorization, and the merchant in X-Merchant-Code',
  replace: 'the backend gets this Authorization for all merchants, and the merchant in X-Merchant-Code',
};

/** What takes a value from the environment. */
const variable = (name: string): string => `"\${${name}}"`;

function configText({ backend, keys, forward, store }: Wishes, folder: string, keysPath: string): string {
  const source =
    keys === 'file' ? `{ source: file, path: ${JSON.stringify(keysPath)} }` : '{ source: upstream }';
  const auth = [
    ...(keys === 'file'
      ? [`  pepper: ${variable('ONCEGATE_PEPPER')} # every hash in the key file depends on it`]
      : []),
    `  keys: ${source}`,
    `  forward: ${forward} # ${FORWARD[forward]}`,
    ...(forward === 'replace'
      ? [`  replaceWith: ${variable('BACKEND_AUTHORIZATION')} # such as Bearer and a token`]
      : []),
  ];
  const [sqlite, redis] = [
    `{ kind: sqlite, path: ${JSON.stringify(join(folder, 'data'))} } # for gateways on one machine`,
    `{ kind: redis, url: ${variable('REDIS_URL')} } # for gateways on several machines`,
  ];
  const [used, other] = store === 'sqlite' ? [sqlite, redis] : [redis, sqlite];
  return `# The configuration of a gateway, with the options that most need. config/gateway.example.yaml has every option, docs/configuration.md explains them.
# "\${NAME}" takes a value from the environment: see secrets.env.

# Merchants call this port.
listen: { host: 0.0.0.0, port: 8080 }

# Health, metrics and the console. Beyond this machine only in a network that you trust.
admin: { host: 127.0.0.1, port: 8081, token: ${variable('ONCEGATE_ADMIN_TOKEN')} }

# The backend.
upstream:
  url: ${JSON.stringify(backend)}
  responseTimeoutMs: 30s # allow for the slowest payout: after it the outcome is unknown

# The secret keys of merchants, and what the backend gets in place of them (docs/backend.md).
auth:
${auth.join('\n')}

# Where the results of idempotency keys are kept. What is lost here can be paid twice.
store: ${used}
#store: ${other}

# A key protects every request but GET, HEAD, OPTIONS and TRACE. An operation gives a call its name in metrics, its scope and its policy.
# These are examples: replace them by the calls of your API. A GET named balance is what check reads.
operations:
  - { name: balance, match: { method: GET, path: /v2/get_balance } }
  - { name: withdraw, match: { method: POST, path: /v1/index.php, where: { action: withdraw } } }
  - { name: checkout, match: { method: POST, path: /v1/index.php, where: { action: checkout } } }
`;
}
