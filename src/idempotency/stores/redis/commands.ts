import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { Redis } from 'ioredis';
import { StoreUnavailable, UnknownCursor, UnreadableRecord } from '../../store.ts';
import { type Argument, type RedisClient, ScriptCommand } from './client.ts';

interface Script {
  lua: string;
  sha: string;
}

const text = (name: string) => readFileSync(new URL(`./scripts/${name}.lua`, import.meta.url), 'utf8');

const record = text('record');

function load(name: string): Script {
  // The first line holds the script's flags and must stay the first.
  const lua = text(name).replace('\n', `\n${record}`);
  return { lua, sha: createHash('sha1').update(lua).digest('hex') };
}

/** Each file says what its script does, and what KEYS, ARGV and the result are. */
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
};

/** A script's answer: nil, a number, bytes, or several of these. */
export type Reply = Buffer | number | null | Reply[];

export interface Written {
  /** Rejects with a {@link StoreUnavailable}. There as soon as Redis has given it. */
  reply: Promise<Reply>;
  /** Whether enough replicas have the write. Undefined: none is waited for. Never known if the reply is a failure. */
  replicated?: Promise<boolean>;
}

interface Waiting {
  send(inFull: boolean): Promise<Reply>;
  inFull: boolean;
  resolve(reply: Reply): void;
  replicated(reached: Promise<boolean>): void;
  reject(error: unknown): void;
}

/** Commands collect in the process while Redis is frozen. If more bytes than this are waiting, new commands are refused. */
const MOST_UNSENT_BYTES = 16 * 1024 * 1024;

/**
 * Runs the scripts, and waits for replicas.
 *
 * WAIT covers only the writes of the connection that sends it. It follows them in the same turn, and no command is ever
 * sent again. It also holds up its connection. So there is one WAIT at a time, behind all the writes that arrived during
 * the previous one, and two of them fit into a command's time limit.
 */
export class Commands {
  readonly client: RedisClient;
  readonly #replicas: number;
  readonly #waitMs: number;
  #waiting: Waiting[] = [];
  #busy = false;

  constructor(client: RedisClient, replicas: number, timeoutMs: number) {
    this.client = client;
    this.#replicas = replicas;
    this.#waitMs = Math.max(1, Math.floor(timeoutMs / 4));
  }

  /** Whether a WAIT follows {@link write}. */
  get waits(): boolean {
    return this.#replicas > 0;
  }

  /** @throws {StoreUnavailable} */
  async run(script: Script, keys: string[], args: Argument[]): Promise<Reply> {
    this.#assertReady();
    try {
      return await this.#send(script, keys, args, false);
    } catch (error) {
      if (!isUnknownScript(error)) throw failureOf(error);
    }
    return await this.answering(() => this.#send(script, keys, args, true));
  }

  #send({ lua, sha }: Script, keys: string[], args: Argument[], inFull: boolean): Promise<Reply> {
    // The scripts' comments are not ASCII, so their text goes as bytes.
    const command = inFull
      ? new ScriptCommand('eval', Buffer.from(lua), keys, args)
      : new ScriptCommand('evalsha', sha, keys, args);
    return this.client.sendCommand(command) as Promise<Reply>;
  }

  /** The same for a write that replicas must have. */
  write(script: Script, keys: string[], args: Argument[]): Written {
    if (this.#replicas === 0) return { reply: this.run(script, keys, args) };
    const send = (inFull: boolean) => this.#send(script, keys, args, inFull);
    const { promise, resolve: replicated } = Promise.withResolvers<boolean>();
    const reply = this.answering(() => {
      const replied = new Promise<Reply>((resolve, reject) => {
        this.#waiting.push({ send, inFull: false, resolve, replicated, reject });
      });
      if (!this.#busy) void this.#flush();
      return replied;
    });
    return { reply, replicated: promise };
  }

  /** Gives every failure of `command` one name. */
  async answering<T>(command: () => Promise<T>): Promise<T> {
    this.#assertReady();
    try {
      return await command();
    } catch (error) {
      throw failureOf(error);
    }
  }

  #assertReady(): void {
    if (this.client.status !== 'ready')
      throw new StoreUnavailable('redis: not connected', { maybeWritten: false });
    const nodes = this.client instanceof Redis ? [this.client] : this.client.nodes('master');
    if (nodes.some(({ stream }) => (stream?.writableLength ?? 0) > MOST_UNSENT_BYTES))
      throw new StoreUnavailable('redis: it does not read its commands', { maybeWritten: false });
  }

  async #flush(): Promise<void> {
    this.#busy = true;
    // All writes of this turn go into one batch.
    await Promise.resolve();
    while (this.#waiting.length > 0) await this.#sendBatch(this.#waiting.splice(0));
    this.#busy = false;
  }

  async #sendBatch(batch: Waiting[]): Promise<void> {
    try {
      this.#assertReady();
    } catch (error) {
      for (const { reject } of batch) reject(error);
      return;
    }
    // Nothing may be awaited between the first write and the WAIT: they have to leave over the same connection.
    const replies = batch.map(({ send, inFull }) => send(inFull));
    const replicated = this.client.wait(this.#replicas, this.#waitMs).then(
      (reached) => Number(reached) >= this.#replicas,
      () => false,
    );
    for (const [at, waiting] of batch.entries()) {
      (replies[at] as Promise<Reply>).then(
        (reply) => {
          waiting.replicated(replicated);
          waiting.resolve(reply);
        },
        (error: unknown) => {
          if (waiting.inFull || !isUnknownScript(error)) return waiting.reject(error);
          // In the next batch, because this WAIT would not cover it.
          this.#waiting.push({ ...waiting, inFull: true });
        },
      );
    }
    await replicated;
  }
}

const isUnknownScript = (error: unknown) => (error as Error).message.startsWith('NOSCRIPT');

/**
 * Errors with which Redis refuses a command before it runs. A script that has begun to write never gets one of them: Redis
 * checks them at the script's start or at its first write. NOPERM is not among them, because Redis checks the permission
 * of each command within a script.
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

/** What ioredis says of a command that it did not hand to a connection. */
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
  if (code === 'WRONGTYPE') return new UnreadableRecord('the key holds another type of value');
  if (code === 'VOIDED')
    return new StoreUnavailable('redis: the token was given up', { maybeWritten: false });
  return new StoreUnavailable(`redis: ${message}`, { cause: error, maybeWritten: !REFUSED.has(code) });
}
