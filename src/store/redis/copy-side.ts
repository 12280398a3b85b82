import type { Scope, Token } from '../../lib/brands.ts';
import type { Clock } from '../../lib/clock.ts';
import { StoreUnavailable, UnreadableRecord } from '../contract.ts';
import { beginsLog, decodeMark, encodeMark, type Mark } from '../copy-mark.ts';
import {
  type CopiedRecord,
  type CopySide,
  type Expected,
  type LogEntry,
  type Replacement,
  type Snapshot,
  Superseded,
  type UnreadableSnapshot,
} from '../copy-side.ts';
import { decodeAudit, encodeAudit } from './audit.ts';
import { connect, createClient, type Location, type RedisClient } from './client.ts';
import { decodeRecord, encodeRecord, layout, ownerGaveUp } from './codec.ts';
import {
  auditOf,
  Commands,
  copyMarkKeyOf,
  leaseOf,
  notReplicated,
  recordKeyOf,
  scripts,
  wordOf,
} from './commands.ts';
import { inspect, whileUnanswered } from './health.ts';
import { Leases, leaseValueOf } from './lease.ts';
import { openIndexOf } from './open-index.ts';
import type { RedisStoreOptions } from './redis-store.ts';
import { requireFormat } from './store-format.ts';

export type RedisCopySideOptions = Pick<
  RedisStoreOptions,
  'location' | 'prefix' | 'tls' | 'lockNodes' | 'replicas' | 'timeoutMs' | 'connectTimeoutMs'
> & { clock: Clock };

/** A command of the copy may take longer than one of a gateway: nobody waits for it, and a record may be large. */
const SHORTEST_TIMEOUT_MS = 10_000;
/** Records are read up to this size at once, and at least one. */
const PAGE_BYTES = 8 * 1024 * 1024;
const SCOPES_PER_SCAN = 1000;
const LOG_ENTRIES_PER_READ = 10_000;
const SCOPE_CHARACTERS = 64;
/** The name of a record or an audit trail, behind the prefix and the brace. */
const RECORD_OR_AUDIT = /^([0-9a-f]{64})\}(?::audit)?$/;

/** A Redis as the source or the destination of a copy. */
export class RedisCopySide implements CopySide {
  readonly name: string;
  readonly warnings: readonly string[];
  readonly #options: RedisCopySideOptions;
  readonly #client: RedisClient;
  readonly #lockClients: RedisClient[];
  readonly #commands: Commands;
  readonly #leases: Leases;
  readonly #markKey: string;

  /** @throws {StoreUnavailable} if Redis cannot be used, or is a cluster */
  static async open(options: RedisCopySideOptions): Promise<RedisCopySide> {
    const { location, clock, connectTimeoutMs, prefix } = options;
    if ('cluster' in location)
      throw new StoreUnavailable(
        'the records of a Redis Cluster cannot be copied: a script there cannot read the mark that stops the starts of all slots at once',
        { maybeWritten: false },
      );
    const side = new RedisCopySide(options);
    const untilMs = clock.monotonicMs() + connectTimeoutMs;
    try {
      // A lock node that does not answer counts as one that holds the lease.
      for (const client of side.#lockClients) connect(client, connectTimeoutMs).catch(() => {});
      await connect(side.#client, connectTimeoutMs);
      await inspect(side.#client, options, clock, untilMs);
      await whileUnanswered(() => requireFormat(side.#client, prefix), clock, untilMs);
      return side;
    } catch (error) {
      await side.close();
      throw error;
    }
  }

  private constructor(options: RedisCopySideOptions) {
    const { location, prefix, tls, lockNodes, clock } = options;
    const timeoutMs = Math.max(options.timeoutMs, SHORTEST_TIMEOUT_MS);
    this.#options = options;
    this.name = `redis ${addressIn(location)}, prefix ${prefix}`;
    this.warnings =
      lockNodes.length > 0
        ? [
            'leases are not copied to lock.nodes: if this is --to, keys that are executing soon count as in doubt',
          ]
        : [];
    this.#client = createClient(location, timeoutMs, tls);
    this.#lockClients = lockNodes.map((url) => createClient({ url }, timeoutMs, tls));
    this.#commands = new Commands(this.#client, 0, timeoutMs);
    this.#leases = new Leases(this.#client, this.#lockClients, {
      ...{ leaseMs: 1000, clock },
      nameOf: (scope) => leaseOf(recordKeyOf(prefix, scope)),
    });
    this.#markKey = copyMarkKeyOf(prefix);
  }

  async readMark(): Promise<Mark | undefined> {
    const mark = await this.#commands.call(() => this.#client.get(this.#markKey));
    return mark === null ? undefined : decodeMark(mark);
  }

  async changeMark(from: Mark | undefined, to: Mark | undefined): Promise<boolean> {
    const [before, after] = [from, to].map((mark) => (mark ? encodeMark(mark) : ''));
    const args = [before ?? '', after ?? '', beginsLog(from, to) ? 1 : 0];
    const reply = await this.#commands.run(scripts.changeMark, [this.#markKey, this.#logKey], args);
    const changed = wordOf(reply) === 'ok';
    await this.flush();
    return changed;
  }

  async readBeat(): Promise<string> {
    return (await this.#commands.call(() => this.#client.get(this.#beatKey))) ?? '';
  }

  async writeBeat(beat: string): Promise<void> {
    await this.#commands.call<unknown>(() =>
      beat === '' ? this.#client.del(this.#beatKey) : this.#client.set(this.#beatKey, beat),
    );
  }

  async isEmpty(): Promise<boolean> {
    for await (const scopes of this.scopes()) if (scopes.length > 0) return false;
    return true;
  }

  async *scopes(): AsyncIterable<Scope[]> {
    const before = recordKeyOf(this.#options.prefix, '').slice(0, -1);
    let cursor = '0';
    do {
      const [next, keys] = await this.#commands.call(() =>
        this.#client.scan(cursor, 'MATCH', `${before}*`, 'COUNT', SCOPES_PER_SCAN),
      );
      cursor = next;
      // Other keys of a scope, such as its lease, live and die with its record.
      const scopes = keys.map((key) => RECORD_OR_AUDIT.exec(key.slice(before.length))?.[1]);
      yield [...new Set(scopes.filter((scope) => scope !== undefined))] as Scope[];
    } while (cursor !== '0');
  }

  async appendToLog(entries: readonly LogEntry[]): Promise<void> {
    if (entries.length === 0) return;
    const lines = entries.map(({ scope, token }) => Buffer.concat([Buffer.from(scope), token]));
    await this.#commands.call(() => this.#client.rpush(this.#logKey, ...lines));
  }

  async readLog(after: number): Promise<LogEntry[]> {
    const entries: LogEntry[] = [];
    for (;;) {
      const from = after + entries.length;
      const lines = await this.#commands.call(() =>
        this.#client.lrangeBuffer(this.#logKey, from, from + LOG_ENTRIES_PER_READ - 1),
      );
      for (const line of lines)
        entries.push({
          scope: line.toString('latin1', 0, SCOPE_CHARACTERS) as Scope,
          token: line.subarray(SCOPE_CHARACTERS) as Token,
        });
      if (lines.length < LOG_ENTRIES_PER_READ) return entries;
    }
  }

  async read(scopes: readonly Scope[]): Promise<(Snapshot | UnreadableSnapshot)[]> {
    const lengths = await this.#commands.call(() =>
      Promise.all(scopes.map((scope) => this.#lengthOf(scope))),
    );
    let bytes = 0;
    const page = scopes.filter((_, i) => {
      bytes += lengths[i] as number;
      return i === 0 || bytes <= PAGE_BYTES;
    });
    return await Promise.all(page.map((scope) => this.#readOne(scope)));
  }

  async write(mark: Mark, replacements: readonly Replacement[]): Promise<boolean[]> {
    const words = await Promise.all(replacements.map((each) => this.#writeOne(encodeMark(mark), each)));
    if (words.includes('superseded')) throw new Superseded();
    return words.map((word) => word === 'ok');
  }

  /** WAIT covers what its own connection wrote, and all that the server wrote before that. So this writes something first. */
  async flush(): Promise<void> {
    const { replicas, timeoutMs } = this.#options;
    if (replicas === 0) return;
    const reached = await this.#commands.call(async () => {
      const [, acknowledged] = await Promise.all([
        this.#client.set(`${this.#markKey}:flush`, '1', 'PX', 1000),
        this.#client.wait(replicas, Math.max(timeoutMs, SHORTEST_TIMEOUT_MS) / 2),
      ]);
      return Number(acknowledged);
    });
    if (reached < replicas) throw notReplicated('copy');
  }

  async close(): Promise<void> {
    for (const client of [this.#client, ...this.#lockClients]) client.disconnect();
    this.#options.tls?.certificate.close();
  }

  get #beatKey(): string {
    return `${this.#markKey}:beat`;
  }

  /** The scripts append to it, too. */
  get #logKey(): string {
    return `${this.#markKey}:log`;
  }

  #keysOf(scope: Scope): [record: string, lease: string, audit: string] {
    const key = recordKeyOf(this.#options.prefix, scope);
    return [key, leaseOf(key), auditOf(key)];
  }

  async #lengthOf(scope: Scope): Promise<number> {
    const [record] = this.#keysOf(scope);
    return await this.#client.strlen(record).catch((error: Error) => {
      // Another type of value: `read` says so.
      if (error.message.startsWith('WRONGTYPE')) return 0;
      throw error;
    });
  }

  async #readOne(scope: Scope): Promise<Snapshot | UnreadableSnapshot> {
    try {
      const reply = await this.#commands.run(scripts.copyRead, this.#keysOf(scope), []);
      const [bytes, ttlMs, leaseTtlMs, audit, auditTtlMs] = reply as [
        Buffer | null,
        number,
        number,
        Buffer[],
        number,
      ];
      return {
        scope,
        record: bytes ? await this.#recordIn(scope, bytes, ttlMs, leaseTtlMs) : undefined,
        audit: audit.map((line) => decodeAudit(line.toString())),
        auditExpiresInMs: auditTtlMs,
      };
    } catch (error) {
      if (error instanceof UnreadableRecord) return { scope, unreadable: error.message };
      throw error;
    }
  }

  async #recordIn(scope: Scope, bytes: Buffer, ttlMs: number, leaseTtlMs: number): Promise<CopiedRecord> {
    const record = decodeRecord(bytes);
    const { leaseMs, inDoubtRetentionMs } = record.lifetimes;
    // Someone removed the TTL by hand (PERSIST). The copy expires, but not early.
    const expiresInMs = ttlMs < 0 ? inDoubtRetentionMs : ttlMs;
    let aliveForMs = 0;
    if (record.state === 'executing') {
      const youngForMs = leaseMs - (inDoubtRetentionMs - expiresInMs);
      if (this.#leases.scriptMs > 0) aliveForMs = Math.max(0, youngForMs, leaseTtlMs);
      else aliveForMs = (await this.#leases.isHeld(scope)) ? leaseMs : Math.max(0, youngForMs);
    }
    return { ...record, ownerGaveUp: ownerGaveUp(bytes), expiresInMs, aliveForMs };
  }

  async #writeOne(mark: string, { snapshot, expected, withAudit }: Replacement): Promise<string> {
    const { scope, record, audit, auditExpiresInMs } = snapshot;
    const reply = await this.#commands.run(
      scripts.copyWrite,
      [...this.#keysOf(scope), this.#markKey, openIndexOf(this.#options.prefix)],
      [
        mark,
        prefixOf(expected),
        record ? encodeRecord(record, record.ownerGaveUp) : '',
        record ? Math.max(1, Math.ceil(record.expiresInMs)) : 0,
        record ? leaseValueOf({ scope, token: record.token }) : '',
        record ? Math.ceil(record.aliveForMs) : 0,
        withAudit ? 1 : 0,
        Math.max(1, Math.ceil(auditExpiresInMs)),
        ...audit.map(encodeAudit),
      ],
    );
    return wordOf(reply);
  }
}

/** The bytes that the record must begin with: format version, state, token and flags. */
function prefixOf(expected: Expected): Buffer | string {
  if (expected === 'anything') return '*';
  if (expected === 'absent') return '';
  const { state, token, wasInDoubt, ownerGaveUp: gaveUp } = expected;
  // A completed record is never replaced under a condition.
  const start = Buffer.alloc(layout.leaseMs);
  start[layout.version] = 2;
  start.write(state === 'in_doubt' ? 'd' : 'e', layout.state, 'latin1');
  token.copy(start, layout.token);
  start[layout.flags] = Number(wasInDoubt) + 2 * Number(gaveUp);
  return start;
}

/** The address without credentials. */
function addressIn(location: Location): string {
  if ('url' in location) {
    const { host, pathname } = new URL(location.url);
    return `${host}${pathname === '/' ? '' : pathname}`;
  }
  return 'sentinels' in location ? `of sentinels ${location.sentinels.name}` : 'cluster';
}
