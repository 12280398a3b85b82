import type { DeclaredKey } from '../../auth/key-file.ts';
import { KeyIndex } from '../../auth/key-index.ts';
import { isInForce } from '../../auth/key-source.ts';
import { isMistyped } from '../../auth/secret-key.ts';
import { Exit, readArguments, required } from '../arguments.ts';
import { table } from '../table.ts';
import { readSecret } from './input.ts';
import { SOURCE_OPTIONS, type Source, withSource } from './source.ts';

/** Lists keys with their states. */
export async function list(args: string[], usage: string): Promise<void> {
  const options = readArguments(
    args,
    { ...SOURCE_OPTIONS, merchant: { type: 'string' }, json: { type: 'boolean' } },
    usage,
  );
  if (!options) return;
  await withSource(options, usage, async (source) => {
    const all = await describedKeys(source);
    const keys = all.filter(
      ({ merchant }) => options.merchant === undefined || merchant === options.merchant,
    );
    if (options.json) {
      process.stdout.write(`${JSON.stringify(keys, undefined, 2)}\n`);
      return;
    }
    const notesUses = keys.some((key) => key.lastUsed !== undefined);
    const rows = keys.map(({ merchant, id, state, until, lastUsed, scopes }) => [
      ...[merchant, id, state, until],
      ...(notesUses ? [lastUsed ?? 'never'] : []),
      scopes.join(' '),
    ]);
    const head = ['merchant', 'id', 'state', 'until', ...(notesUses ? ['last used'] : []), 'scopes'];
    process.stdout.write(table(head, rows));
  });
}

/** Prints one key as JSON. */
export async function show(args: string[], usage: string): Promise<void> {
  const options = readArguments(
    args,
    { ...SOURCE_OPTIONS, merchant: { type: 'string' }, id: { type: 'string' } },
    usage,
  );
  if (!options) return;
  const merchant = required(options.merchant, 'merchant', usage);
  const id = required(options.id, 'id', usage);
  await withSource(options, usage, async (source) => {
    const key = (await describedKeys(source)).find((one) => one.merchant === merchant && one.id === id);
    if (!key) throw new Exit(`the merchant ${merchant} has no key with the id ${id}`, 1);
    process.stdout.write(`${JSON.stringify(key, undefined, 2)}\n`);
  });
}

/** Says whose secret key standard input has, and whether it is in force. */
export async function verify(args: string[], usage: string): Promise<void> {
  const options = readArguments(args, SOURCE_OPTIONS, usage);
  if (!options) return;
  await withSource(options, usage, async (source) => {
    const pepper = source.pepper();
    const secret = await readSecret();
    if (isMistyped(secret)) throw new Exit('the secret key is mistyped: its checksum is wrong', 1);
    const entry = KeyIndex.of(await source.read(), pepper).find(secret);
    if (!entry) throw new Exit(`the secret key is not in ${source.place}`, 1);
    const { merchantCode, keyId } = entry;
    if (!isInForce(entry, Date.now()))
      throw new Exit(`the secret key is ${keyId} of the merchant ${merchantCode}, and is not in force`, 1);
    process.stdout.write(`${keyId} of the merchant ${merchantCode}, in force\n`);
  });
}

async function describedKeys(source: Source) {
  const { merchants } = await source.read();
  const lastUse = await source.lastUses();
  const nowMs = Date.now();
  return merchants.flatMap(({ code, keys }) =>
    keys.map((key) => ({
      ...described(code, key, nowMs),
      // For a key that was never used: null, and not nothing as for a file, which does not know it.
      ...(lastUse && { lastUsed: lastUse(code, key.id) ?? null }),
    })),
  );
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
