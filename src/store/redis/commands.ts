import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { Command, Redis } from 'ioredis';
import type { RecordId } from '../../lib/brands.ts';
import { programFile } from '../../lib/program.ts';
import {
  type IdentityInUse,
  STORE_FORMAT,
  StoreClosed,
  StoreUnavailable,
  UnknownCursor,
  UnreadableIdentity,
  UnreadableRecord,
} from '../types.ts';
import { addressOf, mastersOf, type RedisClient } from './client.ts';
import { type Argument, ScriptCommand } from './script-command.ts';

/** A Lua script, and the SHA-1 of its UTF-8 text, which EVALSHA takes. */
export interface Script {
  lua: string;
  sha: string;
}

function load(name: string, change = (lua: string) => lua): Script {
  const lua = change(readFileSync(programFile(`store/redis/scripts/${name}.lua`), 'utf8'));
  return { lua, sha: createHash('sha1').update(lua).digest('hex') };
}

/** The head of each file says what the script does, and what its KEYS, ARGV and result are. */
export const scripts = {
  create: load('create'),
  replace: load('replace'),
  read: load('read'),
  // This variant also writes, for the WAIT behind it. It must do so even if Redis is out of memory.
  readAndTouch: load('read', (lua) => lua.replace('no-writes', 'allow-oom')),
  sweep: load('sweep'),
  visit: load('visit'),
  copyProgress: load('copy-progress'),
};

/** The result of a script: nil, a number, bytes, or a list of these. */
export type ScriptReply = Buffer | number | null | ScriptReply[];

/** Reads the result of visit.lua. @throws {UnreadableIdentity} */
export function identityIn(reply: ScriptReply | string): IdentityInUse {
  const [, id, count, other] = /^([0-9a-f]+) (\d+) ([01])$/.exec(String(reply)) ?? [];
  if (id === undefined) throw new UnreadableIdentity();
  return { id, count: Number(count), otherMode: other === '1' };
}

/** What replicas must have before an answer may be given, because the answer must survive a failover. */
export type ToReplicate = 'write' | 'record' | 'nothing';

/** Redis has answered, but too few replicas acknowledged in time what they must have. */
export class NotReplicated extends StoreUnavailable {
  constructor(maybeWritten: boolean) {
    super('redis: the write did not reach its replicas', { maybeWritten });
  }
}

/** `replicated`: whether enough replicas have acknowledged the write. */
type Written<R> = { reply: R; replicated: Promise<boolean> };

/** While Redis is frozen, unsent commands collect in memory. Above this limit new commands are refused. */
const MOST_UNSENT_BYTES = 16 * 1024 * 1024;

/**
 * Runs the scripts, and sends WAIT behind writes that replicas must acknowledge.
 *
 * WAIT covers only the writes of the connection that sends it, so the client must send it in the same turn of the event
 * loop as its writes, and must never send a command twice. WAIT also blocks its connection. Therefore only one batch of
 * writes and its WAIT is under way at a time, and writes that arrive meanwhile form the next batch. A WAIT may take a quarter
 * of the time limit of a command, because a write may have to wait for two of them: the previous one and its own.
 */
export class Commands {
  readonly client: RedisClient;
  /** Whether {@link write} sends a WAIT. */
  readonly waits: boolean;
  readonly #replicas: number;
  readonly #waitMs: number;
  /** The next batch. Each function sends one write. */
  readonly #pending: ((replicated: Promise<boolean>) => void)[] = [];
  /** The end of the batch before it. */
  #sent: Promise<void> = Promise.resolve();
  readonly #partitions: readonly string[];
  /** The slot of each partition, once it was needed. */
  readonly #slots: number[] = [];
  /**
   * Objects in place of connections, by the address of a master that is not connected. A master that is connected and lost again gets a new
   * one, so that the two losses do not look the same.
   */
  readonly #none = new Map<string, object>();

  /** @param partitions for each partition, what its names begin with */
  constructor(client: RedisClient, replicas: number, timeoutMs: number, partitions: readonly string[]) {
    this.client = client;
    this.#partitions = partitions;
    this.waits = replicas > 0;
    this.#replicas = replicas;
    this.#waitMs = Math.max(1, Math.floor(timeoutMs / 4));
  }

  /** The connection to Redis; in a cluster, to the master of a partition. The default partition has the store's identity. */
  connectionOf(partition = 0): unknown {
    const { client } = this;
    if (client instanceof Redis) return client.stream;
    this.#slots[partition] ??= new Command('get', [this.#partitions[partition] as string]).getSlot();
    const address = client.slots[this.#slots[partition]]?.[0] ?? '';
    const node = client.nodes('master').find((each) => addressOf(each) === address);
    if (!node && !this.#none.has(address)) this.#none.set(address, {});
    if (node) this.#none.delete(address);
    return node ?? this.#none.get(address);
  }

  /** Runs a script whose effect no replica needs to acknowledge. Rejects with {@link StoreUnavailable}. */
  run<T>(script: Script, keys: string[], args: Argument[], read: (reply: ScriptReply) => T): Promise<T> {
    return this.#ask((inFull) => this.#send(script, keys, args, inFull), read);
  }

  /** As {@link run}. With `durability.replicas`, also waits until they acknowledge. */
  write<T>(
    script: Script,
    keys: string[],
    args: Argument[],
    read: (reply: ScriptReply) => T,
    toReplicate: (answer: T) => ToReplicate = () => 'write',
  ): Promise<T> {
    if (!this.waits) return this.run(script, keys, args, read);
    return this.#ask(
      (inFull) => this.#enqueue(() => this.#send(script, keys, args, inFull)),
      async ({ reply, replicated }) => {
        const answer = read(reply);
        const needed = toReplicate(answer);
        if (needed === 'nothing' || (await replicated)) return answer;
        throw new NotReplicated(needed === 'write');
      },
    );
  }

  /** Sets a key for a short time, and tells whether as many replicas have it as a start waits for. Rejects with the errors of ioredis too. */
  probe(key: string, lastsMs: number): Promise<Written<unknown>> {
    const set = () => this.client.set(key, '1', 'PX', lastsMs);
    if (this.waits) return this.#enqueue(set);
    return set().then((reply) => ({ reply, replicated: Promise.resolve(true) }));
  }

  /** Runs a command, and turns each failure into {@link StoreUnavailable}. {@link UnknownCursor} stays as it is. */
  call<T>(command: () => Promise<T>): Promise<T> {
    return this.#ask(command, (answer) => answer);
  }

  /** @param send called a second time if Redis does not know the script: in the next batch, because the first WAIT would not cover it */
  #ask<A, T>(send: (inFull: boolean) => Promise<A>, read: (answer: A) => T | Promise<T>): Promise<T> {
    const refusal = this.#refusal();
    if (refusal) return Promise.reject(refusal);
    return send(false).then(read, (error: Error) => {
      if (!error.message.startsWith('NOSCRIPT')) throw failureOf(error);
      return this.call(() => send(true)).then(read);
    });
  }

  #enqueue<R>(send: () => Promise<R>): Promise<Written<R>> {
    const connection = this.connectionOf();
    return new Promise((resolve, reject) => {
      const begun = this.#pending.push((replicated) => {
        // A new connection may lead to a Redis that has forgotten what the old one knew.
        const isOther = connection !== this.connectionOf();
        const refusal = this.#refusal() ?? (isOther ? refused('connected again') : undefined);
        if (refusal) reject(refusal);
        else send().then((reply) => resolve({ reply, replicated }), reject);
      });
      // All writes of this turn of the event loop share a batch.
      if (begun === 1) this.#sent = this.#sent.then(() => this.#sendBatch());
    });
  }

  async #sendBatch(): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<boolean>();
    // No await between the first write and the WAIT: they must leave on the same connection.
    for (const write of this.#pending.splice(0)) write(promise);
    const reached = await this.client.wait(this.#replicas, this.#waitMs).catch(() => 0);
    resolve(Number(reached) >= this.#replicas);
  }

  #send({ lua, sha }: Script, keys: string[], args: Argument[], inFull: boolean): Promise<ScriptReply> {
    // Redis computes the SHA-1 from the bytes of the text, so send UTF-8. ScriptCommand would encode a string as latin1.
    const script = inFull ? Buffer.from(lua) : sha;
    const command = new ScriptCommand(inFull ? 'eval' : 'evalsha', [script, keys.length, ...keys, ...args]);
    return this.client.sendCommand(command) as Promise<ScriptReply>;
  }

  /** Why no command can be sent now. */
  #refusal(): StoreUnavailable | undefined {
    if (this.client.status !== 'ready') return refused('not connected');
    if (mastersOf(this.client).some(isClogged))
      return refused('too many commands are unsent, because it does not read them');
    return undefined;
  }
}

const isClogged = ({ stream }: Redis): boolean => (stream?.writableLength ?? 0) > MOST_UNSENT_BYTES;

const refused = (why: string) => new StoreUnavailable(`redis: ${why}`, { maybeWritten: false });

/**
 * Errors that prove that a command had no effect: Redis checks for them at the start of a script, or at its first write.
 * NOPERM is not among them, because Redis checks permissions for each command within a script.
 */
const REFUSED =
  /^(?:OOM|READONLY|MISCONF|NOREPLICAS|LOADING|MASTERDOWN|BUSY|NOAUTH|CLUSTERDOWN|MOVED|ASK|TRYAGAIN)(?: |$)/;

/**
 * The messages of ioredis for a command that it did not write to a connection, or that every master has refused. Of too many redirections
 * the last one counts too: that master may have executed the command, and its answer was lost.
 */
const NEVER_SENT =
  /^(?:Stream isn't writeable|Cluster isn't ready) and enableOfflineQueue options is false$|^Too many Cluster redirections\. Last error: ReplyError: (?:MOVED|ASK) /;

function failureOf(error: unknown): Error {
  if (error instanceof StoreUnavailable || error instanceof UnknownCursor) return error;
  const { name, message } = error as Error;
  if (name === 'ReplyError') {
    if (message.startsWith('IDENTITY')) return new UnreadableIdentity();
    if (message.startsWith('WRONGTYPE')) return new UnreadableRecord('the key holds another type of value');
    if (message.startsWith('CLOSED')) return new StoreClosed();
    if (message.startsWith('VOIDED')) return refused('the execution was given up: its token is voided');
  }
  const maybeWritten = !(name === 'ReplyError' ? REFUSED : NEVER_SENT).test(message);
  return new StoreUnavailable(`redis: ${message}`, { cause: error, maybeWritten });
}

/** The number of partitions, which is part of the store's format. */
export const PARTITIONS = 1024;

/**
 * The names of Redis' keys. Everything that one script needs is in one partition, whose hash tag keeps it on one node of a
 * cluster.
 */
export class Names {
  /** What the names of each partition begin with. */
  readonly partitions: readonly string[];
  /** Matches all names of this format. */
  readonly pattern: string;

  constructor(prefix: string) {
    const start = `{${prefix}:${STORE_FORMAT}:`;
    this.pattern = `${start}*`;
    this.partitions = Array.from({ length: PARTITIONS }, (_, number) => `${start}${number}}:`);
  }

  /** The first ten bits of an id. An empty id is in partition 0. */
  partitionOf(id: string): number {
    return Number.parseInt(id.slice(0, 3), 16) >> 2;
  }

  /** What the names in the partition of this record begin with. */
  startOf(id: string): string {
    return this.partitions[this.partitionOf(id)] as string;
  }

  recordOf(id: string): string {
    return this.startOf(id) + shortOf(id);
  }
}

/** An id as names have it: 32 characters instead of 48. */
export const shortOf = (id: string): string => Buffer.from(id, 'hex').toString('base64url');
export const idOf = (short: string): RecordId => Buffer.from(short, 'base64url').toString('hex') as RecordId;

export const leaseName = (record: string): string => `${record}:lease`;
export const auditName = (record: string): string => `${record}:audit`;
