import type { KeyEditor } from '../../auth/key-file-editor.ts';
import { hashOf, keyLine, pepperCheckOf } from '../../auth/key-index.ts';
import { isMistyped, MISTYPED, newSecretKey } from '../../auth/secret-key.ts';
import { Exit, readArguments, required } from '../arguments.ts';
import { readSecret, timeOf } from './input.ts';
import { pepperOf, SOURCE_OPTIONS, withSource } from './source.ts';

const MIN_SECRET_CHARS = 16;

const NEW_KEY_OPTIONS = {
  ...SOURCE_OPTIONS,
  merchant: { type: 'string' },
  id: { type: 'string' },
  scope: { type: 'string', multiple: true },
  expires: { type: 'string' },
} as const;

/** Adds a new secret key, and prints it. */
export async function issue(args: string[], usage: string): Promise<void> {
  const options = readArguments(
    args,
    { ...NEW_KEY_OPTIONS, mode: { type: 'string', default: 'live' } },
    usage,
  );
  if (!options) return;
  const { mode, scope: scopes, expires } = options;
  const merchant = required(options.merchant, 'merchant', usage);
  const nowMs = Date.now();
  const expiresAt = expires === undefined ? undefined : timeOf(expires, 'expires', nowMs);
  const secret = newSecretKey(modeOf(mode, usage));
  await withSource(options, usage, async (source) => {
    const pepper = source.pepper();
    const id = await source.edit((editor) => {
      const newId = options.id ?? freeId(editor, merchant, nowMs);
      settlePepper(editor, pepper, source.place);
      editor.add(merchant, { id: newId, hash: hashOf(pepper, secret), scopes, expiresAt });
      return newId;
    }, pepper);
    printSecret(secret, `${source.place}: the merchant ${merchant} has the new key ${id}`);
  });
}

/** Adds a new secret key with the scopes of an old one, which expires after the overlap. */
export async function rotate(args: string[], usage: string): Promise<void> {
  const options = readArguments(
    args,
    {
      ...SOURCE_OPTIONS,
      merchant: { type: 'string' },
      id: { type: 'string' },
      mode: { type: 'string', default: 'live' },
      overlap: { type: 'string', default: '24h' },
    },
    usage,
  );
  if (!options) return;
  const merchant = required(options.merchant, 'merchant', usage);
  const secret = newSecretKey(modeOf(options.mode, usage));
  const nowMs = Date.now();
  const untilMs = Date.parse(timeOf(options.overlap, 'overlap', nowMs));
  const until = new Date(untilMs).toISOString();
  await withSource(options, usage, async (source) => {
    const pepper = source.pepper();
    const { oldId, newId } = await source.edit((editor) => {
      settlePepper(editor, pepper, source.place);
      const old = keyToRotate(editor, merchant, options.id, nowMs);
      const id = freeId(editor, merchant, nowMs);
      const scopes = old.scopes.includes('*') ? undefined : old.scopes;
      editor.add(merchant, { id, hash: hashOf(pepper, secret), scopes });
      if ((old.expiresAt ?? Number.POSITIVE_INFINITY) > untilMs)
        editor.setTime(merchant, old.id, 'expiresAt', until);
      return { oldId: old.id, newId: id };
    }, pepper);
    printSecret(
      secret,
      `${source.place}: the merchant ${merchant} has the new key ${newId}, and ${oldId} expires at ${until} or before`,
    );
  });
}

/** Revokes a key, now or from a time on. */
export async function revoke(args: string[], usage: string): Promise<void> {
  const options = readArguments(
    args,
    {
      ...SOURCE_OPTIONS,
      merchant: { type: 'string' },
      id: { type: 'string' },
      at: { type: 'string', default: '0s' },
    },
    usage,
  );
  if (!options) return;
  const merchant = required(options.merchant, 'merchant', usage);
  const id = required(options.id, 'id', usage);
  const at = timeOf(options.at, 'at', Date.now());
  await withSource(options, usage, async (source) => {
    await source.edit((editor) => editor.setTime(merchant, id, 'revokedAt', at));
    process.stderr.write(
      `${source.place}: the key ${id} of the merchant ${merchant} is revoked from ${at} on\n`,
    );
  });
}

/** Adds a secret key that exists already. */
export async function importKey(args: string[], usage: string): Promise<void> {
  const options = readArguments(args, { ...NEW_KEY_OPTIONS, 'allow-short': { type: 'boolean' } }, usage);
  if (!options) return;
  const { scope: scopes, expires } = options;
  const merchant = required(options.merchant, 'merchant', usage);
  const id = required(options.id, 'id', usage);
  const expiresAt = expires === undefined ? undefined : timeOf(expires, 'expires', Date.now());
  await withSource(options, usage, async (source) => {
    const pepper = source.pepper();
    const secret = await readSecret();
    if (secret.length < MIN_SECRET_CHARS && !options['allow-short'])
      throw new Exit(
        `the secret key has fewer than ${MIN_SECRET_CHARS} characters and can be guessed; --allow-short imports it`,
        1,
      );
    if (isMistyped(secret)) throw new Exit(`the secret key ${MISTYPED}`, 1);
    await source.edit((editor) => {
      settlePepper(editor, pepper, source.place);
      editor.add(merchant, { id, hash: hashOf(pepper, secret), scopes, expiresAt });
    }, pepper);
    process.stderr.write(`${source.place}: the merchant ${merchant} has the new key ${id}\n`);
  });
}

/** Prints the line of a secret key for the key file. */
export async function hash(args: string[], usage: string): Promise<void> {
  const options = readArguments(
    args,
    { id: { type: 'string' }, scope: { type: 'string', multiple: true } },
    usage,
  );
  if (!options) return;
  const id = required(options.id, 'id', usage);
  const pepper = pepperOf(process.env);
  const line = keyLine({ id, secret: await readSecret(), pepper, scopes: options.scope });
  process.stdout.write(`${line}\n`);
}

function modeOf(mode: string, usage: string): 'live' | 'test' {
  if (mode === 'live' || mode === 'test') return mode;
  throw new Exit(`--mode takes live or test\n\n${usage}`, 64);
}

/**
 * Refuses another pepper than that of the keys, because hashes under two peppers would make half of them unknown. Writes the
 * check value if there is no hash yet: of other hashes it is not known which pepper made them.
 */
function settlePepper(editor: KeyEditor, pepper: string, place: string): void {
  const { pepperCheck, merchants } = editor.file;
  const check = pepperCheckOf(pepper);
  if (pepperCheck !== undefined && pepperCheck !== check)
    throw new Exit(
      `the pepper is not that of the keys in ${place}: its pepperCheck differs (in a file, remove pepperCheck if it is the wrong one)`,
      78,
    );
  const hasHashes = merchants.some(({ keys }) => keys.some(({ hash }) => hash !== undefined));
  if (!hasHashes) editor.setPepperCheck(check);
}

/** The date, and a letter if the merchant has keys with that id: 2026-11-23, 2026-11-23b, 2026-11-23c. */
function freeId(editor: KeyEditor, merchant: string, nowMs: number): string {
  const date = new Date(nowMs).toISOString().slice(0, 10);
  for (const letter of ['', ...'bcdefghijklmnopqrstuvwxyz'])
    if (!editor.find(merchant, date + letter)) return date + letter;
  throw new Exit('name the new key: --id', 64);
}

function keyToRotate(editor: KeyEditor, merchant: string, id: string | undefined, nowMs: number) {
  const all = editor.file.merchants.find(({ code }) => code === merchant)?.keys ?? [];
  const isValid = (key: (typeof all)[number]) =>
    (key.notBefore ?? Number.NEGATIVE_INFINITY) <= nowMs &&
    Math.min(key.expiresAt ?? Number.POSITIVE_INFINITY, key.revokedAt ?? Number.POSITIVE_INFINITY) > nowMs;
  const valid = all.filter((key) => isValid(key) && (id === undefined || key.id === id));
  const [only, another] = valid;
  if (!only) throw new Exit(`the merchant ${merchant} has no such key in force`, 1);
  if (another) {
    const ids = valid.map((key) => key.id).join(', ');
    throw new Exit(`the merchant ${merchant} has several keys in force (${ids}): name one by --id`, 64);
  }
  return only;
}

/** The secret key alone goes to standard output, so that it can be piped into a vault. */
function printSecret(secret: string, message: string): void {
  process.stderr.write(`${message}\n`);
  process.stdout.write(`${secret}\n`);
}
