import {
  chmodSync,
  chownSync,
  existsSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { isDeepStrictEqual } from 'node:util';
import { type Document, isMap, isSeq, parseDocument, type YAMLMap, type YAMLSeq } from 'yaml';
import { type DeclaredKey, type KeyFile, KeyFileError, parseKeyFile, YAML_OPTIONS } from './key-file.ts';
import { KeyIndex, pepperCheckOf } from './key-index.ts';

/** A new key. Times are ISO 8601. */
export interface WrittenKey {
  id: string;
  hash: string;
  scopes?: readonly string[] | undefined;
  expiresAt?: string | undefined;
}

/** The keys cannot be changed by this command. The message says why, and contains no secret. */
export class KeysNotEdited extends Error {
  override readonly name = 'KeysNotEdited';
}

const EMPTY = 'format: 1\nmerchants: []\n';
const NEW_FILE_MODE = 0o600;

/** Changes a key file, as a whole or not at all. Comments and order stay as they are, and JSON stays JSON. */
export class KeyFileEditor {
  /** The path of the file itself, and not of a symbolic link to it, which `save` would replace. */
  readonly #path: string;
  readonly #document: Document;
  readonly #isJson: boolean;
  readonly #pepper: string | undefined;
  #file: KeyFile;

  /**
   * @param path a file that does not exist is empty
   * @param pepper needed to add keys
   * @throws KeyFileError if a gateway would refuse the file, or another pepper made its hashes
   */
  constructor(path: string, pepper?: string) {
    const text = textOf(path);
    this.#pepper = pepper;
    this.#path = existsSync(path) ? realpathSync(path) : path;
    this.#file = parsed(text, path, pepper);
    this.#isJson = isJson(text);
    this.#document = parseDocument(text, YAML_OPTIONS);
    // Hashes without a pepperCheck may be under another pepper.
    const hasHashes = this.#file.merchants.some(({ keys }) => keys.some(({ hash }) => hash !== undefined));
    if (pepper === undefined || hasHashes) return;
    this.#document.set('pepperCheck', pepperCheckOf(pepper));
    this.#check();
  }

  /** The keys as the gateway reads them. */
  get file(): KeyFile {
    return this.#file;
  }

  find(merchantCode: string, id: string): DeclaredKey | undefined {
    const merchant = this.#file.merchants.find(({ code }) => code === merchantCode);
    return merchant?.keys.find((key) => key.id === id);
  }

  /** Adds a key, and its merchant if there is none with this code. @throws KeysNotEdited */
  add(merchantCode: string, key: WrittenKey): void {
    if (this.find(merchantCode, key.id))
      throw new KeysNotEdited(`the merchant ${merchantCode} has a key with the id ${key.id} already`);
    const { hash, id, scopes, expiresAt } = key;
    const members = { id, hash, ...(scopes && { scopes }), ...(expiresAt !== undefined && { expiresAt }) };
    const merchant = this.#merchant(merchantCode) ?? this.#addMerchant(merchantCode);
    listIn(merchant, 'keys').add(this.#document.createNode(members, { flow: true }));
    this.#check(merchantCode, key.id);
  }

  /** Sets a time of a key (ISO 8601). One that is set already can only become earlier. @throws KeysNotEdited */
  setTime(merchantCode: string, id: string, member: 'expiresAt' | 'revokedAt', time: string): void {
    const { key } = this.#place(merchantCode, id);
    const before = this.find(merchantCode, id)?.[member];
    if (before !== undefined && before <= Date.parse(time))
      throw new KeysNotEdited(`its ${member} is ${new Date(before).toISOString()} already`);
    key.set(member, time);
    this.#check(merchantCode, id);
  }

  /** Removes a key, and its merchant with the last one. @throws KeysNotEdited */
  remove(merchantCode: string, id: string): void {
    const { merchant, keys, key } = this.#place(merchantCode, id);
    const [list, item] =
      keys.items.length > 1 ? [keys, key] : [listIn(this.#document.contents, 'merchants'), merchant];
    list.delete(list.items.indexOf(item));
    if (list.items.length === 0) list.flow = true;
    this.#check(merchantCode, id);
  }

  /** Replaces the file atomically. Another editor must not run meanwhile: see {@link editKeyFile}. */
  save(): void {
    const temporary = `${this.#path}.${process.pid}.tmp`;
    try {
      writeFileSync(temporary, this.#text(), { flag: 'wx', mode: NEW_FILE_MODE, flush: true });
      keepOwner(this.#path, temporary);
      renameSync(temporary, this.#path);
    } catch (error) {
      rmSync(temporary, { force: true });
      throw error;
    }
  }

  #text(): string {
    return this.#isJson
      ? `${JSON.stringify(this.#document.toJS(), undefined, 2)}\n`
      : this.#document.toString({ lineWidth: 0 });
  }

  /**
   * Reads the changed text as a gateway would.
   *
   * @throws KeysNotEdited if a gateway would refuse it, or read another key than the changed one differently
   */
  #check(merchantCode?: string, id?: string): void {
    let changed: KeyFile;
    try {
      changed = parseKeyFile(Buffer.from(this.#text()));
      if (this.#pepper !== undefined) KeyIndex.of(changed, this.#pepper);
    } catch (error) {
      throw new KeysNotEdited((error as Error).message);
    }
    const others = (file: KeyFile) =>
      file.merchants.flatMap(({ code, keys }) =>
        keys.filter((key) => code !== merchantCode || key.id !== id).map((key) => [code, key]),
      );
    if (!isDeepStrictEqual(others(changed), others(this.#file)))
      throw new KeysNotEdited('the change would alter another key: change the file by hand');
    this.#file = changed;
  }

  /** Where a key is written. @throws KeysNotEdited */
  #place(merchantCode: string, id: string): { merchant: YAMLMap; keys: YAMLSeq; key: YAMLMap } {
    const merchant = this.#merchant(merchantCode);
    const keys = merchant && listIn(merchant, 'keys');
    const key = keys?.items.find((item) => isMap(item) && item.get('id') === id);
    if (merchant && keys && isMap(key)) return { merchant, keys, key };
    throw new KeysNotEdited(`the merchant ${merchantCode} has no key with the id ${id}`);
  }

  #merchant(code: string): YAMLMap | undefined {
    const found = listIn(this.#document.contents, 'merchants').items.find(
      (item) => isMap(item) && item.get('code') === code,
    );
    return found as YAMLMap | undefined;
  }

  #addMerchant(code: string): YAMLMap {
    const merchants = listIn(this.#document.contents, 'merchants');
    merchants.flow = this.#isJson;
    const merchant = this.#document.createNode({ code, keys: [] }) as YAMLMap;
    merchants.add(merchant);
    return merchant;
  }
}

/** A list that new items can be added to. An empty list is written in one line, and a longer one is not. */
function listIn(map: unknown, member: string): YAMLSeq {
  const list = isMap(map) ? map.get(member) : undefined;
  if (!isSeq(list)) throw new KeysNotEdited(`${member} is an alias in this file: change the file by hand`);
  if (list.items.length === 0) list.flow = false;
  return list;
}

/**
 * Edits the file and saves it. Only one process at a time can do so.
 *
 * @param pepper needed to add keys; a file that does not exist is created only then
 * @throws KeysNotEdited, KeyFileError
 */
export function editKeyFile<T>(path: string, edit: (editor: KeyFileEditor) => T, pepper?: string): T {
  if (pepper === undefined && !existsSync(path)) throw new KeysNotEdited(`${path} does not exist`);
  // The lock of a symbolic link is that of its file.
  const lock = `${existsSync(path) ? realpathSync(path) : path}.lock`;
  try {
    writeFileSync(lock, '', { flag: 'wx', mode: NEW_FILE_MODE });
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== 'EEXIST') throw new KeysNotEdited(`${lock} cannot be created (${code})`);
    throw new KeysNotEdited(`another command changes ${path}; if none runs, remove ${lock}`);
  }
  try {
    const editor = new KeyFileEditor(path, pepper);
    const result = edit(editor);
    editor.save();
    return result;
  } finally {
    rmSync(lock, { force: true });
  }
}

/** @throws KeyFileError whose mistakes name the file */
function parsed(text: string, path: string, pepper: string | undefined): KeyFile {
  try {
    const file = parseKeyFile(Buffer.from(text));
    if (pepper !== undefined) KeyIndex.of(file, pepper);
    return file;
  } catch (error) {
    if (!(error instanceof KeyFileError)) throw error;
    throw new KeyFileError(error.mistakes.map((mistake) => `${path}: ${mistake}`));
  }
}

function textOf(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT') return EMPTY;
    throw new KeysNotEdited(`${path} cannot be read (${code})`);
  }
}

/** Gives the new file the owner and the mode of the old one. Otherwise a gateway could not read what another user has changed. */
function keepOwner(path: string, file: string): void {
  const before = statSync(path, { throwIfNoEntry: false });
  if (!before) return;
  try {
    chmodSync(file, before.mode & 0o777);
    chownSync(file, before.uid, before.gid);
  } catch {
    throw new KeysNotEdited(`the owner of ${path} cannot be kept: run this command as that user, or as root`);
  }
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
