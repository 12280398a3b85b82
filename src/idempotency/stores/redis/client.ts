import { Cluster, Command, Redis } from 'ioredis';
import { StoreUnavailable } from '../../store.ts';

/** The Redis that holds the records: one server, the master that sentinels name, or a cluster. */
export type Location =
  | { url: string }
  | { sentinels: { name: string; nodes: readonly string[] }; credentials: Credentials }
  | { cluster: readonly string[]; credentials: Credentials };

/** The login of the data nodes behind sentinels or in a cluster. A `url` contains its own. */
export interface Credentials {
  username?: string | undefined;
  password?: string | undefined;
  tls?: boolean | undefined;
}

export type RedisClient = Redis | Cluster;

/**
 * With these options no command is executed twice and none hangs. By default ioredis sends a command again after a
 * reconnect, and queues commands while it is disconnected. Without both it needs a `commandTimeout`, because the promise of
 * a command that was in flight during a reconnect may never settle.
 */
const onceOnly = (timeoutMs: number) => ({
  lazyConnect: true,
  maxRetriesPerRequest: 0,
  autoResendUnfulfilledCommands: false,
  enableOfflineQueue: false,
  commandTimeout: timeoutMs,
  connectTimeout: Math.max(500, timeoutMs),
  // While Redis loads its file, try again soon. By default ioredis waits as long as Redis estimates, up to 10 s.
  maxLoadingRetryTime: 100,
});

/** The pause before the next attempt to connect, in milliseconds. */
const retryAfterMs = (attempt: number): number => Math.min(25 * 2 ** Math.min(attempt, 5), 500);

/** @param timeoutMs a command that takes longer is rejected, though Redis may still execute it */
export function createClient(location: Location, timeoutMs: number): RedisClient {
  const client = construct(location, timeoutMs);
  // Without a listener an unreachable Redis would end the process. Each command reports its own failure.
  client.on('error', () => {});
  if (client instanceof Redis) batchWrites(client);
  else client.on('+node', batchWrites);
  return client;
}

/**
 * Sends all commands of one turn of the event loop in one write, because a system call for each command costs more than the
 * rest of the command. The write happens after all sockets that are ready have been read.
 */
function batchWrites(node: Redis): void {
  node.on('connect', () => {
    const { stream } = node;
    const write = stream.write.bind(stream) as (...args: unknown[]) => boolean;
    stream.write = (...args: unknown[]) => {
      if (stream.writableCorked === 0) {
        stream.cork();
        setImmediate(() => stream.uncork());
      }
      return write(...args);
    };
  });
}

function construct(location: Location, timeoutMs: number): RedisClient {
  const options = { ...onceOnly(timeoutMs), retryStrategy: retryAfterMs };
  if ('url' in location) return new Redis(location.url, options);
  const { tls, ...login } = location.credentials;
  const access = { ...defined(login), ...(tls ? { tls: {} } : {}) };
  if ('sentinels' in location) {
    const sentinels = location.sentinels.nodes.map(addressOf);
    return new Redis({
      ...options,
      ...access,
      sentinels,
      name: location.sentinels.name,
      sentinelRetryStrategy: retryAfterMs,
    });
  }
  return new Cluster(location.cluster.map(addressOf), {
    lazyConnect: true,
    enableOfflineQueue: false,
    // With any other value ioredis sends a command again after its connection broke.
    retryDelayOnFailover: 0,
    retryDelayOnClusterDown: 0,
    clusterRetryStrategy: retryAfterMs,
    redisOptions: { ...onceOnly(timeoutMs), ...access },
  });
}

function addressOf(url: string): { host: string; port: number } {
  const { hostname, port } = new URL(url);
  return { host: hostname, port: Number(port) || 6379 };
}

/** Removes the members that are undefined, because ioredis would use `undefined` in place of its default. */
function defined<T extends object>(object: T): { [K in keyof T]?: NonNullable<T[K]> } {
  return Object.fromEntries(Object.entries(object).filter(([, value]) => value !== undefined)) as never;
}

/**
 * Resolves when the client is ready.
 *
 * @throws {StoreUnavailable} after `withinMs`
 */
export async function connect(client: RedisClient, withinMs: number): Promise<void> {
  let lastError = 'no answer';
  const remember = (error: Error) => {
    lastError = error.message || String((error as NodeJS.ErrnoException).code);
  };
  client.on('error', remember);
  const ready = new Promise<void>((resolve) => client.once('ready', () => resolve()));
  // After a failed first attempt ioredis tries again, so only the timer rejects.
  client.connect().catch(remember);
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new StoreUnavailable(`redis cannot be reached: ${lastError}`)), withinMs);
  });
  try {
    await Promise.race([ready, late]);
  } finally {
    clearTimeout(timer);
    client.off('error', remember);
  }
}

export type Argument = string | number | Buffer;

/**
 * A command that runs a script. An ordinary ioredis command would cost more CPU time than everything else in a start. This
 * one is encoded once, encodes strings as latin1, and shares one timer with all others.
 */
export class ScriptCommand extends Command {
  readonly #encoded: Buffer;
  /** When {@link Deadlines} rejects this command. 0: it was not sent yet. */
  dueMs = 0;
  /** The next command in the queue of {@link Deadlines}. */
  newer: ScriptCommand | undefined;

  /**
   * @param script the SHA-1 for `evalsha`, the text for `eval`
   * @param args strings are encoded as latin1
   */
  constructor(
    name: 'evalsha' | 'eval',
    script: string | Buffer,
    keys: readonly string[],
    args: readonly Argument[],
  ) {
    super(name, NO_ARGUMENTS, REPLY_AS_BYTES);
    // The cluster client reads the keys from `args` to find their node.
    this.args = [script, keys.length, ...keys];
    this.#encoded = encode(name, this.args as Argument[], args);
  }

  override toWritable(): Buffer {
    return this.#encoded;
  }

  /** Called by ioredis each time it sends the command. After a redirection within a cluster that is more than once. */
  override setTimeout(ms: number): void {
    if (this.dueMs > 0) return;
    const deadlines = byLimit.get(ms) ?? new Deadlines(ms);
    byLimit.set(ms, deadlines);
    deadlines.add(this);
  }
}

const NO_ARGUMENTS: string[] = [];
const REPLY_AS_BYTES = { replyEncoding: null };

/** Parts up to this size are sent as text, because one long write is faster than many short ones. */
const TEXT_BYTES = 512;

/** The line that begins a part, behind the end of the part before it, by the part's length. */
const HEADS = Array.from({ length: TEXT_BYTES + 1 }, (_, length) => `\r\n$${length}\r\n`);
const headOf = (length: number): string => HEADS[length] ?? `\r\n$${length}\r\n`;

/** Encodes a command in Redis' protocol. */
function encode(name: string, start: readonly Argument[], args: readonly Argument[]): Buffer {
  const chunks: Buffer[] = [];
  let text = `*${1 + start.length + args.length}${headOf(name.length)}${name}`;
  for (const parts of [start, args]) {
    for (const part of parts) {
      if (typeof part === 'string') text += headOf(part.length) + part;
      else if (typeof part === 'number') {
        const digits = String(part);
        text += headOf(digits.length) + digits;
      } else if (part.length <= TEXT_BYTES) text += headOf(part.length) + part.toString('latin1');
      else {
        chunks.push(Buffer.from(text + headOf(part.length), 'latin1'), part);
        text = '';
      }
    }
  }
  const end = Buffer.from(`${text}\r\n`, 'latin1');
  return chunks.length === 0 ? end : Buffer.concat([...chunks, end]);
}

/** Commands are checked at least this many times within their time limit, and at least every 10 ms. */
const CHECKS_PER_LIMIT = 20;
const CHECK_EVERY_MS = 10;

/**
 * Rejects commands without an answer after their time limit. One timer serves all commands with the same limit. They are a
 * queue, because the oldest one is due first. Answered commands leave it with the next new one, so they do not fill the memory.
 */
class Deadlines {
  readonly #limitMs: number;
  #oldest: ScriptCommand | undefined;
  #newest: ScriptCommand | undefined;
  #isChecking = false;

  constructor(limitMs: number) {
    this.#limitMs = limitMs;
  }

  add(command: ScriptCommand): void {
    this.#dropSettled();
    command.dueMs = performance.now() + this.#limitMs;
    if (this.#newest) this.#newest.newer = command;
    else this.#oldest = command;
    this.#newest = command;
    if (!this.#isChecking) this.#scheduleCheck();
  }

  /** Clears the link of each dropped command: an old object that links to a new one keeps it from being collected. */
  #dropSettled(): void {
    while (this.#oldest?.isSettled) {
      const { newer } = this.#oldest;
      this.#oldest.newer = undefined;
      this.#oldest = newer;
    }
    if (!this.#oldest) this.#newest = undefined;
  }

  #scheduleCheck(): void {
    this.#isChecking = true;
    setTimeout(
      () => {
        const nowMs = performance.now();
        for (let at = this.#oldest; at && at.dueMs <= nowMs; at = at.newer)
          if (!at.isSettled) at.reject(new Error('Command timed out'));
        this.#dropSettled();
        this.#isChecking = this.#oldest !== undefined;
        if (this.#isChecking) this.#scheduleCheck();
      },
      Math.min(this.#limitMs / CHECKS_PER_LIMIT, CHECK_EVERY_MS),
    );
  }
}

/** By time limit in milliseconds. */
const byLimit = new Map<number, Deadlines>();
