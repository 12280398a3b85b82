import slotOf from 'cluster-key-slot';
import { Cluster, type Redis } from 'ioredis';
import type { Scope } from '../../lib/brands.ts';
import { type Commands, type Reply, recordKeyOf, scripts } from './commands.ts';
import { ScriptCommand } from './script-command.ts';

const SLOTS = 16_384;
/** So many keys that a script which examines them takes a fraction of a millisecond. */
const KEYS_PER_SCAN = 100;
/** So many indexes are read at once. */
const INDEXES_AT_ONCE = 64;

/** How far a reader has come: the number of an index, and the last scope of it. */
export interface OpenPosition {
  readonly at: number;
  /** Empty: before the first one. */
  readonly after: string;
}

export const FIRST_OPEN: OpenPosition = { at: 0, after: '' };

/**
 * The names of the index of open records (record.lua). All keys of a script must be in one slot of a cluster, so there each
 * slot that has records has an index of its own: a hash tag in its name leads to the slot.
 */
export class OpenIndex {
  readonly #prefix: string;
  readonly #name: string;
  /** By slot. Undefined: no cluster. */
  readonly #tags: readonly string[] | undefined;

  constructor(prefix: string, isCluster: boolean) {
    this.#prefix = prefix;
    this.#name = openIndexOf(prefix);
    this.#tags = isCluster ? tags() : undefined;
  }

  /** The name of the index that has this scope. */
  nameOf(scope: Scope): string {
    return this.#tags ? `${this.#name}:{${this.#tags[slotOf(scope)]}}` : this.#name;
  }

  names(from = 0, to = SLOTS): string[] {
    if (!this.#tags) return [this.#name].slice(from, to);
    return this.#tags.slice(from, to).map((tag) => `${this.#name}:{${tag}}`);
  }

  /**
   * The next scopes, at most `most`. There are no more if `next` is undefined, or if Redis refuses: its user may not read sorted
   * sets, and an index may be of another type.
   */
  async read(
    { client }: Commands,
    { at, after }: OpenPosition,
    most: number,
  ): Promise<{ scopes: Scope[]; next: OpenPosition | undefined }> {
    const names = this.names(at, at + INDEXES_AT_ONCE);
    const found = await Promise.all(
      names.map((name, n) => {
        const from = n === 0 && after !== '' ? `(${after}` : '-';
        return client.zrange(name, from, '+', 'BYLEX', 'LIMIT', 0, most).catch(refusedAsNone);
      }),
    );
    const scopes: Scope[] = [];
    for (const [n, all] of found.entries()) {
      const some = all.slice(0, most - scopes.length) as Scope[];
      scopes.push(...some);
      const last = some.at(-1);
      if (scopes.length === most && last !== undefined) return { scopes, next: { at: at + n, after: last } };
    }
    const next = at + names.length;
    const isEnd = names.length < INDEXES_AT_ONCE || next >= SLOTS;
    return { scopes, next: isEnd ? undefined : { at: next, after: '' } };
  }

  async has({ client }: Commands, scope: Scope): Promise<boolean> {
    const [at, to] = [`[${scope}`, `[${scope}`];
    const found = await client.zrange(this.nameOf(scope), at, to, 'BYLEX').catch(refusedAsNone);
    return found.length > 0;
  }

  /**
   * Adds open records that the index lacks, because somebody removed the index.
   * Reads the names of all keys, in small steps.
   *
   * @param goesOn called before each step: false ends the search
   * @throws {StoreUnavailable}
   */
  async addMissing(commands: Commands, goesOn: () => Promise<boolean>): Promise<void> {
    const { client } = commands;
    for (const node of client instanceof Cluster ? client.nodes('master') : [client]) {
      let cursor = '0';
      do {
        if (!(await goesOn())) return;
        const [next, ...scopes] = await commands.call(() => this.#findOpen(node, cursor));
        await Promise.all(scopes.map((scope) => this.correct(commands, scope)));
        cursor = next;
      } while (cursor !== '0');
    }
  }

  /**
   * Adds the scope if its record is open, and removes it if there is none. Returns whether the record is open.
   *
   * @throws {StoreUnavailable} also while the slot moves to another master, and only one of both has moved
   */
  async correct(commands: Commands, scope: Scope): Promise<boolean> {
    const keys = [recordKeyOf(this.#prefix, scope), this.nameOf(scope)];
    return (await commands.run(scripts.correctIndex, keys, [])) === 1;
  }

  async #findOpen(node: Redis, cursor: string): Promise<[next: string, ...scopes: Scope[]]> {
    // In full, because a master of a cluster gets no other script that names no key.
    const text = Buffer.from(scripts.findOpen.lua);
    const command = new ScriptCommand(
      'eval',
      text,
      [],
      [cursor, recordKeyOf(this.#prefix, '*'), KEYS_PER_SCAN],
    );
    const found = (await node.sendCommand(command)) as Reply[];
    return found.map(String) as [string, ...Scope[]];
  }
}

function refusedAsNone(error: Error): string[] {
  if (error.name === 'ReplyError') return [];
  throw error;
}

/** The name of the index, if the store is no cluster. */
export const openIndexOf = (prefix: string): string => `${prefix}:v2:open`;

/**
 * A short hash tag for each slot. It takes some 10 ms. The tags must never change: gateways with other tags would not find what
 * is in the indexes.
 */
function tags(): string[] {
  const found = new Array<string>(SLOTS);
  for (let [left, number] = [SLOTS, 0]; left > 0; number++) {
    const tag = number.toString(36);
    const slot = slotOf(tag);
    if (found[slot] !== undefined) continue;
    found[slot] = tag;
    left--;
  }
  return found;
}
