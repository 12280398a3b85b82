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
import type { RedisClient } from './client.ts';
import { auditOf, type Commands, idOf, type Names, type Reading, scripts } from './commands.ts';
import { type RedisOptions, RedisRegister } from './register.ts';

/** No merchant waits for a command of a copy, and a record may be large. */
const SHORTEST_TIMEOUT_MS = 10_000;
const KEYS_PER_SCAN = 1000;

/** A Redis as the source or the destination of a copy. Each partition has the mark; that of the first one decides who changes it. */
export class RedisCopyRegister implements CopyRegister {
  readonly register: RedisRegister;
  readonly #client: RedisClient;
  readonly #commands: Commands;
  readonly #names: Names;
  readonly #marks: readonly string[];

  /** @throws {StoreUnavailable} */
  static async open(options: RedisOptions): Promise<RedisCopyRegister> {
    const patient = { ...options, timeoutMs: Math.max(options.timeoutMs, SHORTEST_TIMEOUT_MS) };
    return new RedisCopyRegister(await RedisRegister.open(patient));
  }

  private constructor(register: RedisRegister) {
    this.register = register;
    this.#commands = register.commands;
    this.#client = register.commands.client;
    this.#names = register.names;
    this.#marks = this.#names.partitions.map((start) => `${start}closed`);
  }

  async readCopyMark(): Promise<(CopyMark & { isWhole: boolean }) | undefined> {
    const texts = await this.#commands.call(() =>
      Promise.all(this.#marks.map((key) => this.#client.get(key))),
    );
    const [first] = texts;
    if (!first) return undefined;
    return { ...decodeCopyMark(first), isWhole: texts.every((text) => text === first) };
  }

  async changeCopyMark(to: CopyMark): Promise<boolean> {
    const [first = '', ...others] = this.#marks;
    const put = (key: string, isNext: 0 | 1) =>
      this.#commands.write(scripts.copyMark, [key], [encodeCopyMark(to), to.epoch, isNext], IS_THERE);
    if (!(await put(first, 1))) return false;
    return (await Promise.all(others.map((key) => put(key, 0)))).every((isThere) => isThere);
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
    for (const node of this.#masters())
      for (let cursor = '', keys: string[] = []; cursor !== '0'; ) {
        const from = cursor || '0';
        [cursor, keys] = await this.#commands.call(() =>
          node.scan(from, 'MATCH', this.#names.pattern, 'COUNT', KEYS_PER_SCAN),
        );
        yield keys.flatMap((key): Scanned[] => {
          const [, id, audit] = /\}:([\w-]{43})(:audit)?$/.exec(key) ?? [];
          return id ? [{ id: idOf(id), kind: audit ? 'audit' : 'record' }] : [];
        });
      }
  }

  async putAudit(id: Scope, audit: readonly AuditRecord[]): Promise<void> {
    const name = auditOf(this.#names.recordOf(id));
    const draft = `${name}:draft`;
    const entries = audit.map(encodeAudit);
    const multi = this.#client
      .multi()
      .del(draft)
      .rpush(draft, ...entries)
      .pexpire(draft, AUDIT_RETENTION_MS);
    const replies = await this.#commands.call(() => multi.renamenx(draft, name).del(draft).exec());
    for (const [error] of replies ?? []) if (error) throw error;
  }

  async close(): Promise<void> {
    await this.register.close();
  }

  #masters(): Redis[] {
    return this.#client instanceof Cluster ? this.#client.nodes('master') : [this.#client];
  }
}

const IS_THERE: Reading<boolean> = {
  read: (reply) => reply === 1,
  mustLast: () => true,
  isWrite: () => true,
};

/** The slots of a node, from its own line of CLUSTER NODES. While one of them moves, no two answers are the same. */
function slotsIn(nodes: string): string {
  const own = nodes.split('\n').find((line) => line.includes('myself')) ?? '';
  const slots = own.split(' ').slice(8).join(' ');
  return slots.includes('[') ? randomUUID() : slots;
}
