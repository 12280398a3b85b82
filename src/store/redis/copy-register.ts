import { randomUUID } from 'node:crypto';
import { Cluster, type Redis } from 'ioredis';
import type { Scope } from '../../lib/brands.ts';
import { AUDIT_RETENTION_MS, type AuditRecord } from '../contract.ts';
import {
  type CopyMark,
  type CopyRegister,
  decodeCopyMark,
  encodeCopyMark,
  type Scanned,
} from '../register.ts';
import { encodeAudit } from './audit.ts';
import { connect, createClient, type Location, type RedisClient } from './client.ts';
import { auditOf, Commands, idOf, Names, type Reading, scripts } from './commands.ts';
import { type RedisOptions, RedisRegister } from './register.ts';

/** No merchant waits for a command of a copy, and a record may be large. */
const SHORTEST_TIMEOUT_MS = 10_000;
const KEYS_PER_SCAN = 1000;

/** A Redis as the source or the destination of a copy. Each partition has the mark; that of the first one decides who changes it. */
export class RedisCopyRegister implements CopyRegister {
  readonly name: string;
  readonly register: RedisRegister;
  readonly #client: RedisClient;
  readonly #commands: Commands;
  readonly #names: Names;
  readonly #marks: readonly string[];

  /** @throws {StoreUnavailable} */
  static async open(options: RedisOptions): Promise<RedisCopyRegister> {
    const { location, tls, connectTimeoutMs } = options;
    const timeoutMs = Math.max(options.timeoutMs, SHORTEST_TIMEOUT_MS);
    const register = await RedisRegister.open({ ...options, timeoutMs });
    const client = createClient(location, timeoutMs, tls);
    try {
      await connect(client, connectTimeoutMs);
      return new RedisCopyRegister({ ...options, timeoutMs }, register, client);
    } catch (error) {
      client.disconnect();
      await register.close();
      throw error;
    }
  }

  private constructor(options: RedisOptions, register: RedisRegister, client: RedisClient) {
    const { location, prefix, replicas, timeoutMs } = options;
    this.name = `redis ${addressIn(location)}, prefix ${prefix}`;
    this.register = register;
    this.#client = client;
    this.#names = new Names(prefix);
    this.#marks = this.#names.partitions.map((start) => `${start}closed`);
    this.#commands = new Commands(client, replicas, timeoutMs, this.#marks[0] as string);
  }

  async readCopyMark(): Promise<CopyMark | undefined> {
    const text = await this.#commands.call(() => this.#client.get(this.#marks[0] as string));
    if (text === null) return undefined;
    const mark = decodeCopyMark(text);
    // A run that was killed may not have written it everywhere.
    await this.#putEverywhere(text, mark);
    return mark;
  }

  async changeCopyMark(to: CopyMark): Promise<boolean> {
    const text = encodeCopyMark(to);
    const isNext = await this.#put(this.#marks[0] as string, text, to, true);
    return isNext && (await this.#putEverywhere(text, to));
  }

  async hasCopyMark(mark: CopyMark): Promise<boolean> {
    const text = encodeCopyMark(mark);
    const found = await this.#commands.call(() =>
      Promise.all(this.#marks.map((key) => this.#client.get(key))),
    );
    return found.every((one) => one === text);
  }

  async #putEverywhere(text: string, mark: CopyMark): Promise<boolean> {
    const put = await Promise.all(this.#marks.map((key) => this.#put(key, text, mark, false)));
    return put.every((isThere) => isThere);
  }

  #put(key: string, text: string, { epoch }: CopyMark, isNext: boolean): Promise<boolean> {
    return this.#commands.write(scripts.copyMark, [key], [text, epoch, isNext ? 1 : 0], IS_THERE);
  }

  async servers(): Promise<string> {
    const servers = this.#masters().map(async (node) => {
      const [, runId] = /^run_id:(\w+)/m.exec(await node.info('server')) ?? [];
      const nodes = this.#client instanceof Cluster ? String(await node.cluster('NODES')) : '';
      return `${runId} ${slotsIn(nodes)}`;
    });
    return (await this.#commands.call(() => Promise.all(servers))).toSorted().join('\n');
  }

  async *scan(): AsyncIterable<Scanned[]> {
    for await (const keys of this.#keys())
      yield keys.flatMap((key): Scanned[] => {
        const [, id, audit] = /\}:([\w-]{43})(:audit)?$/.exec(key) ?? [];
        return id ? [{ id: idOf(id), kind: audit ? 'audit' : 'record' }] : [];
      });
  }

  async putAudit(id: Scope, audit: readonly AuditRecord[]): Promise<void> {
    const name = auditOf(this.#names.recordOf(id));
    const draft = `${name}:draft`;
    await this.#commands.call(async () => {
      const replies = await this.#client
        .multi()
        .del(draft)
        .rpush(draft, ...audit.map(encodeAudit))
        .pexpire(draft, AUDIT_RETENTION_MS)
        .renamenx(draft, name)
        .del(draft)
        .exec();
      for (const [error] of replies ?? []) if (error) throw error;
    });
  }

  /** Leaves the marks, and the tokens that are void. */
  async clear(): Promise<void> {
    for await (const keys of this.#keys()) {
      const ours = keys.filter((key) => /\}:(?:[\w-]{43}(?::\w+)*|open)$/.test(key));
      await this.#commands.call(() => Promise.all(ours.map((key) => this.#client.del(key))));
    }
  }

  async close(): Promise<void> {
    this.#client.disconnect();
    await this.register.close();
  }

  async *#keys(): AsyncIterable<string[]> {
    for (const node of this.#masters())
      for (let cursor = '', keys: string[] = []; cursor !== '0'; ) {
        [cursor, keys] = await this.#commands.call(() =>
          node.scan(cursor || '0', 'MATCH', this.#names.pattern, 'COUNT', KEYS_PER_SCAN),
        );
        yield keys;
      }
  }

  #masters(): Redis[] {
    return this.#client instanceof Cluster ? this.#client.nodes('master') : [this.#client];
  }
}

const IS_THERE: Reading<boolean> = {
  read: (reply) => reply === 1,
  mustLast: () => true,
  isWrite: (isThere) => isThere,
};

/** The slots of a node, from its own line of CLUSTER NODES. While one of them moves, no two answers are the same. */
function slotsIn(nodes: string): string {
  const own = nodes.split('\n').find((line) => line.includes('myself')) ?? '';
  const slots = own.split(' ').slice(8).join(' ');
  return slots.includes('[') ? randomUUID() : slots;
}

/** The address without credentials. */
function addressIn(location: Location): string {
  if ('sentinels' in location) return `of sentinels ${location.sentinels.name}`;
  if ('cluster' in location) return `cluster ${new URL(location.cluster[0] as string).host}`;
  const { host, pathname } = new URL(location.url);
  return `${host}${pathname === '/' ? '' : pathname}`;
}
