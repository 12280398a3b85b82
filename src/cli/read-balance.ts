import { randomUUID } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { Readable } from 'node:stream';
import type { Executor } from '../backend/executor.ts';
import { forwardedHeaders } from '../backend/headers.ts';
import { probeKey } from '../backend/key-probe.ts';
import type { Config } from '../config/schema.ts';
import { forwardAuthorization } from '../keys/authorization-header.ts';
import { FileKeySource } from '../keys/file-key-source.ts';
import { isInForce } from '../keys/key-source.ts';
import { asReceived } from '../lib/exchange.ts';
import { Exit } from './arguments.ts';
import { failed, saidOf, withExecutor } from './deliver.ts';
import { readSecret } from './keys/input.ts';

/** The environment variable that has a merchant's secret key for `check`. */
export const SECRET_KEY = 'ONCEGATE_SECRET_KEY';

const MAX_ANSWER_BYTES = 1024 * 1024;

/** Why a backend answers 401 or 403 to a merchant whom the gateway has let in, and which option repairs that. */
const REPAIRS: Record<Config['auth']['forward'], string> = {
  keep: 'it got the secret key of the merchant (auth.forward: keep) and does not accept it. If it wants a credential of the gateway, set auth.forward: replace and auth.replaceWith; if it does know secret keys of merchants, import those with oncegate keys import',
  strip:
    'it got no Authorization (auth.forward: strip). If it knows the secret keys of merchants, set auth.forward: keep; if it wants a credential of the gateway, set auth.forward: replace and auth.replaceWith',
  replace:
    'it does not accept auth.replaceWith, which it got in place of the secret key of the merchant (auth.forward: replace)',
};

/**
 * The secret key that `check` shall try. Never an argument, which every user of the machine can read.
 *
 * @param file that has it
 * @throws {Exit} if it cannot be read, or cannot be a secret key
 */
export async function secretKeyOf(
  file: string | undefined,
  env: NodeJS.ProcessEnv,
): Promise<string | undefined> {
  const { [SECRET_KEY]: value } = env;
  if (file === undefined && !value) return undefined;
  const stdin = file === undefined ? Readable.from([Buffer.from(value ?? '')]) : createReadStream(file);
  return await readSecret({ stdin }, file ?? SECRET_KEY).catch((error: unknown) => {
    if (error instanceof Exit) throw error;
    throw new Exit(`${file} cannot be read (${(error as NodeJS.ErrnoException).code})`, 64);
  });
}

/** Reads a balance of the backend as the gateway does for the merchant who sends this secret key. */
export async function readBalance(config: Config, secret: string): Promise<{ ok: boolean; detail: string }> {
  const target = pathOf(config);
  if (target === undefined)
    return failed('no operation is a GET of a path without parameters: declare the one that reads a balance');
  return await withExecutor(config, MAX_ANSWER_BYTES, async (executor) => {
    const merchant = await merchantOf(config, secret, executor);
    if ('why' in merchant) return failed(merchant.why);
    const headers = forwardedHeaders(['Authorization', `Bearer ${secret}`, 'Accept', 'application/json'], {
      requestId: randomUUID(),
      merchantCode: merchant.code,
      client: { address: '127.0.0.1', proxies: [] },
      authorization: forwardAuthorization(config.auth),
      keyHeaders: [],
      keepUnderscore: [],
      unencoded: true,
    });
    const exchange = asReceived(
      await executor.send({ method: 'GET', target, headers, body: Buffer.alloc(0) }, {}),
    );
    const status = exchange.kind === 'complete' ? exchange.response.status : 0;
    const said = `GET ${target} for the merchant ${merchant.code}: ${saidOf(exchange)}`;
    if (status === 401 || status === 403) return failed(`${said}: ${REPAIRS[config.auth.forward]}`);
    return status >= 200 && status < 300 ? { ok: true, detail: said } : failed(said);
  });
}

/** The path of the operation `balance`, or else of the first operation that is a GET. */
function pathOf({ operations }: Config): string | undefined {
  const reads = operations.filter(
    ({ match: { methods, path } }) => methods.includes('GET') && !/[:*{]/.test(path),
  );
  return (reads.find(({ name }) => name === 'balance') ?? reads[0])?.match.path;
}

/** Finds the merchant of a secret key, as the gateway does. */
async function merchantOf(
  { auth: { keys, pepper } }: Config,
  secret: string,
  executor: Executor,
): Promise<{ code: string } | { why: string }> {
  if (keys.source === 'upstream') {
    const answer = await probeKey(executor, keys, secret);
    if (answer.kind === 'accepted') return { code: answer.merchantCode };
    const why = answer.kind === 'refused' ? 'the backend says that the secret key is invalid' : answer.reason;
    return { why: `GET ${keys.path}: ${why}` };
  }
  const source = await FileKeySource.open({ path: keys.path, pepper });
  source.close();
  const entry = source.find(secret);
  if (!entry) return { why: `the secret key is not in ${keys.path}: oncegate keys import adds it` };
  const { keyId, merchantCode } = entry;
  if (isInForce(entry, Date.now())) return { code: merchantCode };
  return { why: `the secret key is ${keyId} of the merchant ${merchantCode}, and is not in force` };
}
