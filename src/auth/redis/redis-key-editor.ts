import { setTimeout as sleep } from 'node:timers/promises';
import { type DeclaredKey, declaredKey, type KeyFile, KeyFileError, keyName } from '../key-file.ts';
import { type KeyEditor, KeysNotEdited, type WrittenKey } from '../key-file-editor.ts';
import { KeyIndex } from '../key-index.ts';
import { fieldOf, type MerchantKey, type RedisKeyList, type StoredKeys } from './key-list.ts';

/** Collects changes of one version of the list in Redis. {@link editRedisKeys} writes them. */
class RedisKeyEditor implements KeyEditor {
  readonly #pepper: string | undefined;
  readonly #changed = new Map<string, MerchantKey>();
  #file: KeyFile;

  constructor(file: KeyFile, pepper: string | undefined) {
    this.#file = file;
    this.#pepper = pepper;
  }

  get file(): KeyFile {
    return this.#file;
  }

  get changed(): MerchantKey[] {
    return [...this.#changed.values()];
  }

  find(merchantCode: string, id: string): DeclaredKey | undefined {
    return this.#keysOf(merchantCode).find((key) => key.id === id);
  }

  add(merchantCode: string, key: WrittenKey): void {
    if (this.find(merchantCode, key.id))
      throw new KeysNotEdited(`the merchant ${merchantCode} has a key with the id ${key.id} already`);
    const parsed = declaredKey.safeParse({ ...key, scopes: key.scopes && [...key.scopes] });
    const mistakes = [
      ...(keyName.safeParse(merchantCode).error?.issues ?? []).map(({ message }) => `merchant: ${message}`),
      ...(parsed.error?.issues ?? []).map(({ path, message }) => `${path.join('.')}: ${message}`),
    ];
    if (!parsed.success || mistakes.length > 0) throw new KeysNotEdited(mistakes.join('\n'));
    const twin = this.#ownerOf(parsed.data);
    if (twin !== undefined) throw new KeysNotEdited(`this secret key is there already: ${twin}`);
    this.#put(merchantCode, parsed.data, [...this.#keysOf(merchantCode), parsed.data]);
  }

  setTime(merchantCode: string, id: string, member: 'expiresAt' | 'revokedAt', time: string): void {
    const key = this.find(merchantCode, id);
    if (!key) throw new KeysNotEdited(`the merchant ${merchantCode} has no key with the id ${id}`);
    const before = key[member];
    const timeMs = Date.parse(time);
    if (before !== undefined && before <= timeMs)
      throw new KeysNotEdited(`its ${member} is ${new Date(before).toISOString()} already`);
    if (member === 'expiresAt' && timeMs <= (key.notBefore ?? Number.NEGATIVE_INFINITY))
      throw new KeysNotEdited('expiresAt: must be later than notBefore');
    const changed = { ...key, [member]: timeMs };
    const keys = this.#keysOf(merchantCode).map((one) => (one === key ? changed : one));
    this.#put(merchantCode, changed, keys);
  }

  setPepperCheck(pepperCheck: string): void {
    this.#file = { ...this.#file, pepperCheck };
  }

  /** The merchant and id of the key with the same hash. */
  #ownerOf({ hash }: DeclaredKey): string | undefined {
    for (const { code, keys } of this.#file.merchants)
      for (const key of keys) if (key.hash?.toLowerCase() === hash?.toLowerCase()) return `${code}/${key.id}`;
    return undefined;
  }

  #keysOf(merchantCode: string): readonly DeclaredKey[] {
    return this.#file.merchants.find(({ code }) => code === merchantCode)?.keys ?? [];
  }

  #put(merchantCode: string, changed: DeclaredKey, keys: DeclaredKey[]): void {
    const others = this.#file.merchants.filter(({ code }) => code !== merchantCode);
    const file = { ...this.#file, merchants: [...others, { code: merchantCode, keys }] };
    try {
      if (this.#pepper !== undefined) KeyIndex.of(file, this.#pepper);
    } catch (error) {
      throw error instanceof KeyFileError ? new KeysNotEdited(error.message) : error;
    }
    this.#file = file;
    this.#changed.set(fieldOf({ merchantCode, keyId: changed.id }), { merchantCode, key: changed });
  }
}

/** Each attempt fails only if another change succeeded. */
const ATTEMPTS = 50;
const PAUSE_MS = 20;

/**
 * Changes the list in Redis. If another command changes it at the same time, `edit` is called again with the list that is
 * there then, so that no change is lost.
 *
 * @param pepper needed to add keys; a list that does not exist is created only then
 * @throws KeysNotEdited, KeyFileError if the list is refused, KeysUnavailable: the change may have been made
 */
export async function editRedisKeys<T>(
  list: RedisKeyList,
  edit: (editor: KeyEditor) => T,
  pepper?: string,
): Promise<T> {
  for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
    const stored = await list.read();
    if (!stored && pepper === undefined) throw new KeysNotEdited(`there are no secret keys in ${list.place}`);
    const editor = new RedisKeyEditor(stored?.file ?? { merchants: [] }, pepper);
    const result = edit(editor);
    if (await isWritten(list, stored, editor)) return result;
    await sleep(Math.random() * PAUSE_MS);
  }
  throw new KeysNotEdited(`other commands keep changing the keys in ${list.place}: try again`);
}

async function isWritten(
  list: RedisKeyList,
  stored: StoredKeys | undefined,
  { changed, file }: RedisKeyEditor,
): Promise<boolean> {
  if (changed.length === 0) return true;
  if (file.pepperCheck === undefined)
    throw new KeysNotEdited(`the list in ${list.place} needs a pepperCheck`);
  return (await list.change(stored?.version, file.pepperCheck, changed)) === 'ok';
}
