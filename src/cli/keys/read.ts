import type { DeclaredKey } from '../../keys/key-file.ts';
import { KeyIndex } from '../../keys/key-index.ts';
import { isInForce } from '../../keys/key-source.ts';
import { Exit, FLAG, readArguments, required, TEXT, type Terminal } from '../arguments.ts';
import { table } from '../table.ts';
import { PLACE_OPTIONS, pepperOf, placeOf, readKeys, readSecret } from './input.ts';

/** Lists keys with their states. */
export async function list(args: string[], terminal: Terminal, usage: string): Promise<void> {
  const options = readArguments(args, { ...PLACE_OPTIONS, merchant: TEXT, json: FLAG }, usage);
  const { path } = await placeOf(options, terminal, usage);
  const isNamed = (merchant: string) => options.merchant === undefined || merchant === options.merchant;
  const keys = describedKeys(path).filter(({ merchant }) => isNamed(merchant));
  const rows = keys.map(({ merchant, id, state, until, scopes }) => [
    ...[merchant, id, state, until, scopes.join(' ')],
  ]);
  const text = table(['merchant', 'id', 'state', 'until', 'scopes'], rows);
  terminal.stdout.write(options.json ? `${JSON.stringify(keys, undefined, 2)}\n` : text);
}

/** Prints one key as JSON. */
export async function showKey(args: string[], terminal: Terminal, usage: string): Promise<void> {
  const options = readArguments(args, { ...PLACE_OPTIONS, merchant: TEXT, id: TEXT }, usage);
  const merchant = required(options.merchant, 'merchant', usage);
  const id = required(options.id, 'id', usage);
  const { path } = await placeOf(options, terminal, usage);
  const key = describedKeys(path).find((one) => one.merchant === merchant && one.id === id);
  if (!key) throw new Exit(`the merchant ${merchant} has no key with the id ${id}`, 1);
  terminal.stdout.write(`${JSON.stringify(key, undefined, 2)}\n`);
}

/** Says whose secret key standard input has, and whether it is in force. */
export async function verify(args: string[], terminal: Terminal, usage: string): Promise<void> {
  const options = readArguments(args, PLACE_OPTIONS, usage);
  const place = await placeOf(options, terminal, usage);
  const pepper = pepperOf(place, terminal);
  const secret = await readSecret(terminal);
  const entry = KeyIndex.of(readKeys(place.path), pepper).find(secret);
  if (!entry) throw new Exit(`the secret key is not in ${place.path}`, 1);
  const { merchantCode, keyId } = entry;
  if (!isInForce(entry, Date.now()))
    throw new Exit(`the secret key is ${keyId} of the merchant ${merchantCode}, and is not in force`, 1);
  terminal.stdout.write(`${keyId} of the merchant ${merchantCode}, in force\n`);
}

function describedKeys(path: string) {
  const nowMs = Date.now();
  return readKeys(path).merchants.flatMap(({ code, keys }) =>
    keys.map((key) => ({ merchant: code, id: key.id, ...stateOf(key, nowMs), scopes: key.scopes })),
  );
}

/** `until`: when the state ends, if that is known. */
export function stateOf(key: DeclaredKey, nowMs: number): { state: string; until?: string } {
  const { notBefore = Number.NEGATIVE_INFINITY } = key;
  const { expiresAt = Number.POSITIVE_INFINITY, revokedAt = Number.POSITIVE_INFINITY } = key;
  if (revokedAt <= nowMs) return { state: 'revoked' };
  if (expiresAt <= nowMs) return { state: 'expired' };
  if (notBefore > nowMs) return { state: 'not yet valid', until: new Date(notBefore).toISOString() };
  const endMs = Math.min(expiresAt, revokedAt);
  return { state: 'in force', ...(Number.isFinite(endMs) && { until: new Date(endMs).toISOString() }) };
}
