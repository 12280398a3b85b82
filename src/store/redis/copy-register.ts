import { randomUUID } from 'node:crypto';
import { Cluster } from 'ioredis';
import type { RecordId } from '../../lib/brands.ts';
import { AUDIT_RETENTION_MS, type AuditRecord } from '../doubts.ts';
import type { CopyProgress, CopyRegister, FoundProgress } from '../register.ts';
import { decodeCopyProgress, encodeCopyProgress } from '../register.ts';
import { encodeAudit } from './audit.ts';
import type { RedisOptions } from './client.ts';
import { auditName, scripts } from './commands.ts';
import { allMasters, scanAll } from './operators.ts';
import { RedisRegister } from './register.ts';

const KEYS_PER_SCAN = 1000;

/** A Redis as the source or the destination of a copy. Each partition has the progress; that of the first one decides who changes it. */
export class RedisCopyRegister implements CopyRegister {
  readonly register: RedisRegister;
  readonly #names: readonly string[];

  /** @throws {StoreUnavailable} */
  static async open(options: RedisOptions): Promise<RedisCopyRegister> {
    return new RedisCopyRegister(await RedisRegister.open(options));
  }

  private constructor(register: RedisRegister) {
    this.register = register;
    this.#names = register.names.partitions.map((start) => `${start}closed`);
  }

  async readCopyProgress(): Promise<FoundProgress | undefined> {
    const { commands } = this.register;
    const texts = await commands.call(() => Promise.all(this.#names.map((key) => commands.client.get(key))));
    const [first] = texts;
    return first
      ? { ...decodeCopyProgress(first), isWhole: texts.every((text) => text === first) }
      : undefined;
  }

  async changeCopyProgress(to: CopyProgress): Promise<boolean> {
    const [first = '', ...others] = this.#names;
    const { commands } = this.register;
    const put = (key: string, isNext: 0 | 1) =>
      commands.write(
        scripts.copyProgress,
        [key],
        [encodeCopyProgress(to), to.epoch, isNext],
        (reply) => reply === 1,
      );
    if (!(await put(first, 1))) return false;
    return (await Promise.all(others.map((key) => put(key, 0)))).every((isThere) => isThere);
  }

  async servers(): Promise<string> {
    const { commands } = this.register;
    const servers = (await allMasters(this.register)).map(async (node) => {
      const [, runId] = /^run_id:(\w+)/m.exec(await node.info('server')) ?? [];
      const nodes = commands.client instanceof Cluster ? await node.cluster('NODES') : '';
      const [own = ''] = /^.*\bmyself\b.*$/m.exec(String(nodes)) ?? [];
      const slots = own.split(' ').slice(8).join(' ');
      // While a slot moves, no two answers are the same.
      return `${runId} ${slots.includes('[') ? randomUUID() : slots}`;
    });
    return (await commands.call(() => Promise.all(servers))).join('\n');
  }

  scan() {
    return scanAll(this.register, KEYS_PER_SCAN);
  }

  async putAudit(id: RecordId, audit: readonly AuditRecord[]): Promise<void> {
    const { commands, names } = this.register;
    const name = auditName(names.recordOf(id));
    const draft = `${name}:draft`;
    const entries = audit.map(encodeAudit);
    if (entries.length === 0) return;
    const multi = commands.client
      .multi()
      .del(draft)
      .rpush(draft, ...entries);
    const all = multi.pexpire(draft, AUDIT_RETENTION_MS).renamenx(draft, name).del(draft);
    const replies = await commands.call(() => all.exec());
    for (const [error] of replies ?? []) if (error) throw error;
  }

  close(): Promise<void> {
    return this.register.close();
  }
}
