import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import slotOf from 'cluster-key-slot';
import { Redis } from 'ioredis';
import { programFile } from '../../lib/program-files.ts';
import { StoreUnavailable, UnknownCursor, UnreadableMark, UnreadableRecord } from '../contract.ts';
import type { RedisClient } from './client.ts';
import { type Argument, ScriptCommand } from './script-command.ts';

/** A Lua script, and the SHA-1 of its UTF-8 text, which EVALSHA takes. */
export interface Script {
  lua: string;
  sha: string;
}

const text = (name: string) => readFileSync(programFile(`store/redis/scripts/${name}.lua`), 'utf8');

const record = text('record');

function load(name: string): Script {
  // Redis reads a script's flags from its first line, so the shared function goes behind that line.
  const lua = text(name).replace('\n', `\n${record}`);
  return { lua, sha: createHash('sha1').update(lua).digest('hex') };
}

/** The head of each file says what the script does, and what its KEYS, ARGV and result are. */
export const scripts = {
  start: load('start'),
  peek: load('peek'),
  restart: load('restart'),
  complete: load('complete'),
  release: load('release'),
  markInDoubt: load('mark-in-doubt'),
  markLapsed: load('mark-lapsed'),
  resolve: load('resolve'),
  confirm: load('confirm'),
  list: load('list'),
  mark: load('mark'),
  copyRead: load('copy-read'),
  copyWrite: load('copy-write'),
  changeMark: load('change-mark'),
  countOpen: load('count-open'),
  findOpen: load('find-open'),
  correctIndex: load('correct-index'),
};

/** What a script returns: nil, a number, bytes, or a list of these. */
export type Reply = Buffer | number | null | Reply[];

export interface Written {
  /** The script's reply. Does not wait for replicas. Rejects with {@link StoreUnavailable}. */
  reply: Promise<Reply>;
  /**
   * Whether enough replicas have acknowledged the write. Undefined: the store does not wait for replicas. Never settles if
   * `reply` rejects.
   */
  replicated?: Promise<boolean>;
}

/** A write that has not been sent yet. `inFull`: with the script's text, because Redis does not know its SHA-1. */
interface PendingWrite {
  send(inFull: boolean): Promise<Reply>;
  inFull: boolean;
  /** The connection when it was asked for. */
  connection: unknown;
  resolve(reply: Reply): void;
  replicated(reached: Promise<boolean>): void;
  reject(error: unknown): void;
}

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
  readonly #replicas: number;
  readonly #waitMs: number;
  #pending: PendingWrite[] = [];
  #isFlushing = false;
  /** In place of a connection, each time when there is none: the next command opens one. */
  #none: object | undefined;

  constructor(client: RedisClient, replicas: number, timeoutMs: number) {
    this.client = client;
    this.#replicas = replicas;
    this.#waitMs = Math.max(1, Math.floor(timeoutMs / 4));
  }

  /** The connection to Redis. In a cluster that to the master with the store's mark, the only one that is watched; it is new for each. */
  get connection(): unknown {
    const { client } = this;
    if (client instanceof Redis) return client.stream;
    const address = client.slots[MARK_SLOT]?.[0];
    const node = client.nodes('master').find(({ options }) => `${options.host}:${options.port}` === address);
    if (node) this.#none = undefined;
    else this.#none ??= {};
    return node ?? this.#none;
  }

  /** Whether {@link write} sends a WAIT. */
  get waits(): boolean {
    return this.#replicas > 0;
  }

  /** Runs a script whose effect no replica needs to acknowledge. @throws {StoreUnavailable} */
  run(script: Script, keys: string[], args: Argument[]): Promise<Reply> {
    const refusal = this.#refusal();
    if (refusal) return Promise.reject(refusal);
    return this.#send(script, keys, args, false).catch((error: unknown) => {
      if (!isUnknownScript(error)) throw failureOf(error);
      return this.call(() => this.#send(script, keys, args, true));
    });
  }

  #send({ lua, sha }: Script, keys: string[], args: Argument[], inFull: boolean): Promise<Reply> {
    // Redis computes the SHA-1 from the bytes of the text, so send UTF-8. ScriptCommand would encode a string as latin1.
    const command = inFull
      ? new ScriptCommand('eval', Buffer.from(lua), keys, args)
      : new ScriptCommand('evalsha', sha, keys, args);
    return this.client.sendCommand(command) as Promise<Reply>;
  }

  /** Runs a script whose effect replicas must acknowledge, if the store waits for replicas. */
  write(script: Script, keys: string[], args: Argument[]): Written {
    if (this.#replicas === 0) return { reply: this.run(script, keys, args) };
    const send = (inFull: boolean) => this.#send(script, keys, args, inFull);
    const { promise, resolve: replicated } = Promise.withResolvers<boolean>();
    const reply = this.call(() => {
      const replied = new Promise<Reply>((resolve, reject) => {
        const { connection } = this;
        this.#pending.push({ send, inFull: false, connection, resolve, replicated, reject });
      });
      if (!this.#isFlushing) void this.#flush();
      return replied;
    });
    return { reply, replicated: promise };
  }

  /** Runs a command, and turns each failure into {@link StoreUnavailable}. {@link UnknownCursor} stays as it is. */
  async call<T>(command: () => Promise<T>): Promise<T> {
    const refusal = this.#refusal();
    if (refusal) throw refusal;
    try {
      return await command();
    } catch (error) {
      throw failureOf(error);
    }
  }

  /** Why no command can be sent now. */
  #refusal(): StoreUnavailable | undefined {
    const { client } = this;
    if (client.status !== 'ready')
      return new StoreUnavailable('redis: not connected', { maybeWritten: false });
    if (client instanceof Redis ? isClogged(client) : client.nodes('master').some(isClogged))
      return new StoreUnavailable('redis: too many commands are unsent, because it does not read them', {
        maybeWritten: false,
      });
    return undefined;
  }

  /** Why a write must not be sent now: a new connection may lead to a Redis that has forgotten what the old one knew. */
  refusalOnOther(connection: unknown): StoreUnavailable | undefined {
    return connection === this.connection
      ? undefined
      : new StoreUnavailable('redis: connected again', { maybeWritten: false });
  }

  async #flush(): Promise<void> {
    this.#isFlushing = true;
    // All writes of this turn of the event loop share a batch.
    await Promise.resolve();
    while (this.#pending.length > 0) await this.#sendBatch(this.#pending.splice(0));
    this.#isFlushing = false;
  }

  async #sendBatch(asked: PendingWrite[]): Promise<void> {
    const batch = asked.filter(({ connection, reject }) => {
      const refusal = this.#refusal() ?? this.refusalOnOther(connection);
      if (refusal) reject(refusal);
      return !refusal;
    });
    if (batch.length === 0) return;
    // No await between the first write and the WAIT: they must leave on the same connection.
    const replies = batch.map(({ send, inFull }) => send(inFull));
    const replicated = this.client.wait(this.#replicas, this.#waitMs).then(
      (reached) => Number(reached) >= this.#replicas,
      () => false,
    );
    for (const [at, pending] of batch.entries()) {
      (replies[at] as Promise<Reply>).then(
        (reply) => {
          pending.replicated(replicated);
          pending.resolve(reply);
        },
        (error: unknown) => {
          if (pending.inFull || !isUnknownScript(error)) return pending.reject(error);
          // Send it in the next batch, because this WAIT would not cover it.
          this.#pending.push({ ...pending, inFull: true });
        },
      );
    }
    await replicated;
  }
}

const isClogged = ({ stream }: Redis): boolean => (stream?.writableLength ?? 0) > MOST_UNSENT_BYTES;

const isUnknownScript = (error: unknown) => (error as Error).message.startsWith('NOSCRIPT');

/**
 * Errors that prove that a command had no effect: Redis checks for them at the start of a script, or at its first write.
 * NOPERM is not among them, because Redis checks permissions for each command within a script.
 */
const REFUSED = new Set([
  'OOM',
  'READONLY',
  'MISCONF',
  'NOREPLICAS',
  'LOADING',
  'MASTERDOWN',
  'BUSY',
  'NOAUTH',
  'CLUSTERDOWN',
  'MOVED',
  'ASK',
  'TRYAGAIN',
]);

/** The messages of ioredis for a command that it did not write to a connection. */
const NEVER_SENT = new Set([
  "Stream isn't writeable and enableOfflineQueue options is false",
  "Cluster isn't ready and enableOfflineQueue options is false",
]);

function failureOf(error: unknown): Error {
  if (error instanceof StoreUnavailable || error instanceof UnknownCursor) return error;
  const { name, message } = error as Error;
  if (name !== 'ReplyError')
    return new StoreUnavailable(`redis: ${message}`, {
      cause: error,
      maybeWritten: !NEVER_SENT.has(message),
    });
  const [code = ''] = message.split(' ', 1);
  if (code === 'UNREADABLE') return new UnreadableRecord(message.slice(code.length + 1));
  if (code === 'MARK') return new UnreadableMark();
  if (code === 'WRONGTYPE') return new UnreadableRecord('the key holds another type of value');
  if (code === 'CLOSED')
    return new StoreUnavailable(`redis: ${message.slice(code.length + 1)}`, { maybeWritten: false });
  if (code === 'VOIDED')
    return new StoreUnavailable('redis: the execution was given up: its token is voided', {
      maybeWritten: false,
    });
  return new StoreUnavailable(`redis: ${message}`, { cause: error, maybeWritten: !REFUSED.has(code) });
}

/** A scope is a digest, so no record has this name. */
export const MARK = 'mark';
const MARK_SLOT = slotOf(MARK);

/** The key of a record. The braces are a hash tag, which keeps all keys of a scope on one node of a cluster. */
export const recordKeyOf = (prefix: string, scope: string): string => `${prefix}:v2:{${scope}}`;

/** The key of the mark that a store has while its records are copied, see copy/mark.ts. */
export const copyMarkKeyOf = (prefix: string): string => `${prefix}:v2:copy`;

/** The keys of what is counted of all keys in doubt, see doubt-counter.ts. */
export const doubtsKeyOf = (prefix: string, part: 'turn' | 'count' | 'resolutions'): string =>
  `${prefix}:v2:doubts:${part}`;

/** The key of a scope's audit trail. */
export const auditOf = (key: string): string => `${key}:audit`;

/** The key of a record's lease. */
export const leaseOf = (key: string): string => `${key}:lease`;

/** The text that a script returned, such as `ok` or `stale`. */
export const wordOf = (reply: Reply): string => (reply as Buffer).toString('latin1');

export const notReplicated = (what: string): StoreUnavailable =>
  new StoreUnavailable(`redis: the ${what} did not reach its replicas`);
