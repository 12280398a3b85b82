import { editKeyFile, type KeyFileEditor } from '../../keys/key-file-editor.ts';
import { hashOf, keyLine } from '../../keys/key-index.ts';
import { newSecretKey } from '../../keys/secret-key.ts';
import { Exit, FLAG, readArguments, required, TEXT, type Terminal } from '../arguments.ts';
import { checkScopes, PLACE_OPTIONS, pepperOf, placeOf, readSecret, timeOf } from './input.ts';
import { stateOf } from './read.ts';

const MIN_SECRET_CHARS = 16;

const KEY_OPTIONS = { ...PLACE_OPTIONS, merchant: TEXT, id: TEXT };
const MODE = { type: 'string', default: 'live' } as const;
const SCOPE = { type: 'string', multiple: true } as const;

/** Adds a new secret key, and prints it. */
export async function issue(args: string[], terminal: Terminal, usage: string): Promise<void> {
  const options = readArguments(args, { ...KEY_OPTIONS, mode: MODE, scope: SCOPE, expires: TEXT }, usage);
  const { scope: scopes, expires } = options;
  const merchant = required(options.merchant, 'merchant', usage);
  const nowMs = Date.now();
  const expiresAt = expires === undefined ? undefined : timeOf(expires, 'expires', nowMs);
  await addNewKey(options, terminal, usage, (editor, hash) => {
    const id = options.id ?? freeId(editor, merchant, nowMs);
    editor.add(merchant, { id, hash, scopes, expiresAt });
    return `the merchant ${merchant} has the new key ${id}`;
  });
}

/** Adds a new secret key with the scopes of an old one, which expires after the overlap. */
export async function rotate(args: string[], terminal: Terminal, usage: string): Promise<void> {
  const overlap = { ...TEXT, default: '24h' };
  const options = readArguments(args, { ...KEY_OPTIONS, mode: MODE, overlap }, usage);
  const merchant = required(options.merchant, 'merchant', usage);
  const nowMs = Date.now();
  const until = timeOf(options.overlap, 'overlap', nowMs);
  await addNewKey(options, terminal, usage, (editor, hash) => {
    const old = keyToRotate(editor, merchant, options.id, nowMs);
    const scopes = old.scopes.includes('*') ? undefined : old.scopes;
    const id = freeId(editor, merchant, nowMs);
    editor.add(merchant, { id, hash, scopes });
    if ((old.expiresAt ?? Number.POSITIVE_INFINITY) > Date.parse(until))
      editor.setTime(merchant, old.id, 'expiresAt', until);
    return `the merchant ${merchant} has the new key ${id}, and ${old.id} expires at ${until} or before`;
  });
}

/** Revokes a key, now or from a time on. */
export async function revoke(args: string[], terminal: Terminal, usage: string): Promise<void> {
  const options = readArguments(args, { ...KEY_OPTIONS, at: { ...TEXT, default: '0s' } }, usage);
  const merchant = required(options.merchant, 'merchant', usage);
  const id = required(options.id, 'id', usage);
  const at = timeOf(options.at, 'at', Date.now());
  const place = await placeOf(options, terminal, usage);
  editKeyFile(place.path, (editor) => editor.setTime(merchant, id, 'revokedAt', at));
  terminal.stderr.write(
    `${place.path}: the key ${id} of the merchant ${merchant} is revoked from ${at} on\n`,
  );
}

/** Removes a key that is revoked or expired, and its merchant with the last one. */
export async function remove(args: string[], terminal: Terminal, usage: string): Promise<void> {
  const options = readArguments(args, KEY_OPTIONS, usage);
  const merchant = required(options.merchant, 'merchant', usage);
  const id = required(options.id, 'id', usage);
  const place = await placeOf(options, terminal, usage);
  editKeyFile(place.path, (editor) => {
    const key = editor.find(merchant, id);
    const { state } = key ? stateOf(key, Date.now()) : {};
    if (state === 'in force' || state === 'not yet valid')
      throw new Exit(`the key ${id} of the merchant ${merchant} is ${state}: revoke it first`, 1);
    editor.remove(merchant, id);
  });
  terminal.stderr.write(`${place.path}: the key ${id} of the merchant ${merchant} is removed\n`);
}

/** Adds a secret key that exists already. */
export async function importKey(args: string[], terminal: Terminal, usage: string): Promise<void> {
  const specific = { scope: SCOPE, expires: TEXT, 'allow-short': FLAG };
  const options = readArguments(args, { ...KEY_OPTIONS, ...specific }, usage);
  const { scope: scopes, expires } = options;
  const merchant = required(options.merchant, 'merchant', usage);
  const id = required(options.id, 'id', usage);
  const expiresAt = expires === undefined ? undefined : timeOf(expires, 'expires', Date.now());
  const place = await placeOf(options, terminal, usage);
  checkScopes(scopes, place, terminal);
  const pepper = pepperOf(place, terminal);
  const secret = await readSecret(terminal);
  if (secret.length < MIN_SECRET_CHARS && !options['allow-short'])
    throw new Exit(
      `the secret key has fewer than ${MIN_SECRET_CHARS} characters and can be guessed; --allow-short imports it`,
      1,
    );
  const hash = hashOf(pepper, secret);
  editKeyFile(place.path, (editor) => editor.add(merchant, { id, hash, scopes, expiresAt }), pepper);
  terminal.stderr.write(`${place.path}: the merchant ${merchant} has the new key ${id}\n`);
}

/** Prints the line of a secret key for the key file. */
export async function printHash(args: string[], terminal: Terminal, usage: string): Promise<void> {
  const options = readArguments(args, { id: TEXT, scope: SCOPE }, usage);
  const id = required(options.id, 'id', usage);
  const pepper = pepperOf({}, terminal);
  terminal.stdout.write(`${keyLine(id, hashOf(pepper, await readSecret(terminal)), options.scope)}\n`);
}

/** Makes a secret key, and prints it. @param change writes its hash into the file, and returns what to tell the operator */
async function addNewKey(
  options: Parameters<typeof placeOf>[0] & { mode: string; scope?: string[] },
  terminal: Terminal,
  usage: string,
  change: (editor: KeyFileEditor, hash: string) => string,
): Promise<void> {
  const secret = newSecretKey(modeOf(options.mode, usage));
  const place = await placeOf(options, terminal, usage);
  checkScopes(options.scope, place, terminal);
  const pepper = pepperOf(place, terminal);
  const told = editKeyFile(place.path, (editor) => change(editor, hashOf(pepper, secret)), pepper);
  terminal.stderr.write(`${place.path}: ${told}\n`);
  // The secret key alone goes to standard output, so that it can be piped into a vault.
  terminal.stdout.write(`${secret}\n`);
}

function modeOf(mode: string, usage: string): 'live' | 'test' {
  if (mode === 'live' || mode === 'test') return mode;
  throw new Exit(`--mode takes live or test\n\n${usage}`, 64);
}

/** The date, and a letter if the merchant has keys with that id: 2026-11-23, 2026-11-23b, 2026-11-23c. */
function freeId(editor: KeyFileEditor, merchant: string, nowMs: number): string {
  const date = new Date(nowMs).toISOString().slice(0, 10);
  for (const letter of ['', ...'bcdefghijklmnopqrstuvwxyz'])
    if (!editor.find(merchant, date + letter)) return date + letter;
  throw new Exit('name the new key: --id', 64);
}

function keyToRotate(editor: KeyFileEditor, merchant: string, id: string | undefined, nowMs: number) {
  const all = editor.file.merchants.find(({ code }) => code === merchant)?.keys ?? [];
  const valid = all.filter(
    (key) => stateOf(key, nowMs).state === 'in force' && (id === undefined || key.id === id),
  );
  const [only, another] = valid;
  if (!only) throw new Exit(`the merchant ${merchant} has no such key in force`, 1);
  if (another) {
    const ids = valid.map((key) => key.id).join(', ');
    throw new Exit(`the merchant ${merchant} has several keys in force (${ids}): name one by --id`, 64);
  }
  return only;
}
