import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { type DeclaredKey, declaredKey, type KeyFile, KeyFileError, keyName } from '../key-file.ts';
import type { KeyEntry } from '../key-source.ts';

/** What a list needs of a client of ioredis. The client sends no command twice and queues none while it is not connected. */
export interface KeyRedis {
  readonly status: string;
  eval(script: string, keyCount: number, ...keysAndArguments: (string | number)[]): Promise<unknown>;
  hget(key: string, field: string): Promise<string | null>;
  hmget(key: string, ...fields: string[]): Promise<(string | null)[]>;
  hscan(
    key: string,
    cursor: string,
    count: 'COUNT',
    keys: number,
  ): Promise<[cursor: string, pairs: string[]]>;
  hgetall(key: string): Promise<Record<string, string>>;
  on(event: 'error', listener: (error: Error) => void): unknown;
  disconnect(): void;
}

/** Redis did not answer, or refused. A change may have been made. */
export class KeysUnavailable extends Error {
  override readonly name = 'KeysUnavailable';
}

/** One version of the list. */
export interface StoredKeys {
  /** Changes with each change of the list. */
  version: string;
  /** How often the list had been changed. A smaller number than before: Redis has lost changes. */
  changes: number;
  /** The keys, in the form of a key file and in no order. */
  file: KeyFile;
}

/** Describes the list. A member that Redis does not have is undefined. */
interface Head {
  version?: string | undefined;
  format?: string | undefined;
  pepperCheck?: string | undefined;
  /** How many there are. */
  keys?: string | undefined;
}

/** A key with its merchant. */
export interface MerchantKey {
  merchantCode: string;
  key: DeclaredKey;
}

type ParsedKeys = Map<string, { text: string; key: DeclaredKey }>;

/** Of the values in Redis. Gateways that do not know a format refuse it. */
const FORMAT = '1';

/** All keys are loaded into each gateway: ADR 20. */
const MAX_KEYS = 50_000;

/** The list is read in parts, so that neither Redis nor the gateway is blocked for long. About so many keys are one part. */
const KEYS_IN_A_PART = 500;

/** The list is read again if it was changed meanwhile. */
const MOST_READINGS = 20;

const script = (name: string) => readFileSync(new URL(`./scripts/${name}.lua`, import.meta.url), 'utf8');
const scripts = { change: script('change'), noteUses: script('note-uses') };

/** Identifies a key in Redis. Neither part has a space. */
export const fieldOf = ({ merchantCode, keyId }: Pick<KeyEntry, 'merchantCode' | 'keyId'>): string =>
  `${merchantCode} ${keyId}`;

/** The list of secret keys in a Redis. It has their HMACs only. */
export class RedisKeyList {
  /** Names the list to an operator, without the address, which may contain a password. */
  readonly place: string;
  readonly #client: KeyRedis;
  readonly #keys: { head: string; keys: string; days: string };
  #lastError = 'no answer';
  /** The keys of the last reading, by field. A reload parses only the keys that have changed. */
  #parsed: ParsedKeys = new Map();

  /** @param client connected. {@link close} disconnects it */
  constructor(client: KeyRedis, prefix: string) {
    this.#client = client;
    this.place = `redis (prefix ${prefix})`;
    // The braces keep the three on one node of a cluster.
    const name = (what: string) => `${prefix}:{keys}:v1:${what}`;
    this.#keys = { head: name('head'), keys: name('list'), days: name('used') };
    client.on('error', ({ message }) => {
      this.#lastError = message;
    });
  }

  /** Undefined: there is no list. @throws KeysUnavailable */
  async version(): Promise<string | undefined> {
    return (await this.#asked(() => this.#client.hget(this.#keys.head, 'version'))) ?? undefined;
  }

  /**
   * Undefined: there is no list.
   *
   * @throws KeysUnavailable, or KeyFileError if a part of the list is missing or invalid
   */
  async read(): Promise<StoredKeys | undefined> {
    for (let reading = 0; reading < MOST_READINGS; reading++) {
      const head = await this.#readHead();
      const texts = await this.#readTexts();
      // If the version is the same before and after, nothing has changed in between, because no version is used twice.
      if ((await this.version()) === head.version) return this.#storedKeys(head, texts);
    }
    throw new KeysUnavailable('redis: the secret keys were changed again and again while they were read');
  }

  #storedKeys(head: Head, texts: ReadonlyMap<string, string>): StoredKeys | undefined {
    const { version, format, pepperCheck, keys = 'no' } = head;
    if (version === undefined && texts.size === 0) return undefined;
    if (version === undefined || keys !== `${texts.size}`)
      throw new KeyFileError([`the list should have ${keys} keys and has ${texts.size}`]);
    if (format !== FORMAT)
      throw new KeyFileError([
        `the list has format ${format?.slice(0, 20) ?? 'none'}, and this version of oncegate knows format ${FORMAT}`,
      ]);
    // Without it, hashes under a wrong pepper would be unknown keys, and nobody would know why.
    if (pepperCheck === undefined) throw new KeyFileError(['pepperCheck: is missing']);
    const file = { pepperCheck, merchants: this.#merchantsOf(texts) };
    return { version, changes: Number.parseInt(version, 10), file };
  }

  async #readHead(): Promise<Head> {
    const fields = ['version', 'format', 'pepperCheck', 'keys'] as const;
    const values = await this.#asked(() => this.#client.hmget(this.#keys.head, ...fields));
    return Object.fromEntries(fields.map((field, i) => [field, values[i] ?? undefined]));
  }

  async #readTexts(): Promise<Map<string, string>> {
    const texts = new Map<string, string>();
    let cursor = '0';
    do {
      const part = await this.#asked(() =>
        this.#client.hscan(this.#keys.keys, cursor, 'COUNT', KEYS_IN_A_PART),
      );
      cursor = part[0];
      for (let i = 0; i < part[1].length; i += 2) texts.set(part[1][i] as string, part[1][i + 1] as string);
      if (texts.size > MAX_KEYS) throw new KeyFileError([`the list has more than ${MAX_KEYS} keys`]);
    } while (cursor !== '0');
    return texts;
  }

  /**
   * Adds keys, and replaces those with the same merchant and id, all or none.
   *
   * @param before the version that the change was made from; undefined if there was no list
   * @returns changed: another change was faster, and nothing was written
   * @throws KeysUnavailable
   */
  async change(
    before: string | undefined,
    pepperCheck: string,
    changed: readonly MerchantKey[],
  ): Promise<'ok' | 'changed'> {
    const { head, keys } = this.#keys;
    const token = randomBytes(16).toString('hex');
    const pairs = changed.flatMap(({ merchantCode, key }) => [
      fieldOf({ merchantCode, keyId: key.id }),
      textOf(key),
    ]);
    const args = [before ?? '', token, FORMAT, pepperCheck, MAX_KEYS, ...pairs];
    return (await this.#asked(() => this.#client.eval(scripts.change, 2, head, keys, ...args))) as
      | 'ok'
      | 'changed';
  }

  /** @param day in UTC, such as 2026-11-23. @param fields of {@link fieldOf}, at most some hundred. @throws KeysUnavailable */
  async noteUses(day: string, fields: readonly string[]): Promise<void> {
    const { keys, days } = this.#keys;
    await this.#asked(() => this.#client.eval(scripts.noteUses, 2, keys, days, day, ...fields));
  }

  /** The last day on which each key was used, by {@link fieldOf}. @throws KeysUnavailable */
  async lastUses(): Promise<ReadonlyMap<string, string>> {
    return new Map(Object.entries(await this.#asked(() => this.#client.hgetall(this.#keys.days))));
  }

  close(): void {
    this.#client.disconnect();
  }

  async #asked<T>(ask: () => Promise<T>): Promise<T> {
    if (this.#client.status !== 'ready')
      throw new KeysUnavailable(`redis cannot be reached: ${this.#lastError}`);
    try {
      return await ask();
    } catch (error) {
      const message = (error as Error).message.split('\n')[0]?.slice(0, 200) ?? '';
      if (/^(?:DAMAGED|FULL) /.test(message)) throw new KeyFileError([message.replace(/^[A-Z]+ /, '')]);
      throw new KeysUnavailable(`redis: ${message}`);
    }
  }

  #merchantsOf(texts: ReadonlyMap<string, string>): KeyFile['merchants'] {
    const parsed: ParsedKeys = new Map();
    const merchants = new Map<string, DeclaredKey[]>();
    const mistakes: string[] = [];
    for (const [field, text] of texts) {
      const before = this.#parsed.get(field);
      try {
        const one = before?.text === text ? before : { text, key: keyOf(field, text) };
        parsed.set(field, one);
        const code = field.slice(0, field.indexOf(' '));
        const keys = merchants.get(code);
        if (keys) keys.push(one.key);
        else merchants.set(code, [one.key]);
      } catch (error) {
        mistakes.push((error as Error).message);
      }
    }
    if (mistakes.length > 0) throw new KeyFileError(mistakes);
    this.#parsed = parsed;
    return [...merchants].map(([code, keys]) => ({ code, keys }));
  }
}

/** @throws Error that names the key and the mistake, and contains no hash */
function keyOf(field: string, text: string): DeclaredKey {
  const [code = '', id = '', more] = field.split(' ');
  const isNamed = keyName.safeParse(code).success && keyName.safeParse(id).success && more === undefined;
  if (!isNamed) throw new Error('a key has no valid merchant and id');
  const key = declaredKey.safeParse(jsonOf(text));
  if (!key.success) {
    const [first] = key.error.issues;
    throw new Error(`${code}/${id}: ${[...(first?.path ?? [])].join('.')}: ${first?.message}`);
  }
  if (key.data.id !== id) throw new Error(`${code}/${id}: has another id`);
  if (key.data.hash === undefined) throw new Error(`${code}/${id}: has no hash`);
  return key.data;
}

function jsonOf(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** The same members as in a key file, as JSON. */
function textOf({ notBefore, expiresAt, revokedAt, ...key }: DeclaredKey): string {
  const time = (ms: number | undefined) => (ms === undefined ? undefined : new Date(ms).toISOString());
  const times = { notBefore: time(notBefore), expiresAt: time(expiresAt), revokedAt: time(revokedAt) };
  return JSON.stringify({ ...key, ...times });
}
