import { readFileSync } from 'node:fs';
import { type DeclaredKey, type KeyFile, parseKeyFile } from '../../auth/key-file.ts';
import { KeyIndex } from '../../auth/key-index.ts';
import { isInForce } from '../../auth/key-source.ts';
import { isMistyped } from '../../auth/secret-key.ts';
import { Exit, readArguments, required } from '../arguments.ts';
import { table } from '../table.ts';
import { FILE_OPTION, pepperOf, readSecret } from './input.ts';

/** Lists keys with their states. */
export function list(args: string[], usage: string): void {
  const options = readArguments(
    args,
    { ...FILE_OPTION, merchant: { type: 'string' }, json: { type: 'boolean' } },
    usage,
  );
  if (!options) return;
  const nowMs = Date.now();
  const keys = read(options.file)
    .merchants.filter(({ code }) => options.merchant === undefined || code === options.merchant)
    .flatMap(({ code, keys }) => keys.map((key) => described(code, key, nowMs)));
  if (options.json) {
    process.stdout.write(`${JSON.stringify(keys, undefined, 2)}\n`);
    return;
  }
  const rows = keys.map(({ merchant, id, state, until, scopes }) => [
    merchant,
    id,
    state,
    until,
    scopes.join(' '),
  ]);
  process.stdout.write(table(['merchant', 'id', 'state', 'until', 'scopes'], rows));
}

/** Prints one key as JSON. */
export function show(args: string[], usage: string): void {
  const options = readArguments(
    args,
    { ...FILE_OPTION, merchant: { type: 'string' }, id: { type: 'string' } },
    usage,
  );
  if (!options) return;
  const merchant = required(options.merchant, 'merchant', usage);
  const id = required(options.id, 'id', usage);
  const { merchants } = read(options.file);
  const key = merchants.find(({ code }) => code === merchant)?.keys.find((one) => one.id === id);
  if (!key) throw new Exit(`the merchant ${merchant} has no key with the id ${id}`, 1);
  process.stdout.write(`${JSON.stringify(described(merchant, key, Date.now()), undefined, 2)}\n`);
}

/** Says whose secret key standard input has, and whether it is in force. */
export async function verify(args: string[], usage: string): Promise<void> {
  const options = readArguments(args, FILE_OPTION, usage);
  if (!options) return;
  const pepper = pepperOf(process.env);
  const secret = await readSecret();
  if (isMistyped(secret)) throw new Exit('the secret key is mistyped: its checksum is wrong', 1);
  const entry = KeyIndex.of(read(options.file), pepper).find(secret);
  if (!entry) throw new Exit('the secret key is not in the file', 1);
  const { merchantCode, keyId } = entry;
  if (!isInForce(entry, Date.now()))
    throw new Exit(`the secret key is ${keyId} of the merchant ${merchantCode}, and is not in force`, 1);
  process.stdout.write(`${keyId} of the merchant ${merchantCode}, in force\n`);
}

/** @throws {Exit} if the file cannot be read */
function read(path: string): KeyFile {
  let bytes: Buffer;
  try {
    bytes = readFileSync(path);
  } catch (error) {
    throw new Exit(`${path} cannot be read (${(error as NodeJS.ErrnoException).code})`, 78);
  }
  return parseKeyFile(bytes);
}

/** `until`: when the state ends, if that is known. */
function described(merchant: string, key: DeclaredKey, nowMs: number) {
  const { id, scopes, notBefore = Number.NEGATIVE_INFINITY } = key;
  const { expiresAt = Number.POSITIVE_INFINITY, revokedAt = Number.POSITIVE_INFINITY } = key;
  const endMs = Math.min(expiresAt, revokedAt);
  const state =
    revokedAt <= nowMs
      ? 'revoked'
      : expiresAt <= nowMs
        ? 'expired'
        : notBefore > nowMs
          ? 'not yet valid'
          : 'in force';
  const untilMs =
    state === 'not yet valid' ? notBefore : state === 'in force' ? endMs : Number.POSITIVE_INFINITY;
  const until = Number.isFinite(untilMs) ? new Date(untilMs).toISOString() : undefined;
  return { merchant, id, state, until, scopes };
}
