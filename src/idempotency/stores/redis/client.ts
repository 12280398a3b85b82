import { Cluster, Command, Redis } from 'ioredis';
import { StoreUnavailable } from '../../store.ts';

/** Where the records are: one server, the master that the sentinels name, or a cluster. */
export type Location =
  | { url: string }
  | { sentinels: { name: string; nodes: readonly string[] }; credentials: Credentials }
  | { cluster: readonly string[]; credentials: Credentials };

/** For the data nodes of sentinels and clusters; a `url` carries its own. */
export interface Credentials {
  username?: string | undefined;
  password?: string | undefined;
  tls?: boolean | undefined;
}

export type RedisClient = Redis | Cluster;

/**
 * Options under which no command is executed twice and none hangs. By default ioredis sends a command again after a
 * reconnect, and holds commands back while the connection is down. With both off it also needs a `commandTimeout`,
 * because the promise of a command that was in flight at a reconnect may never settle.
 */
const onceOnly = (timeoutMs: number) => ({
  lazyConnect: true,
  maxRetriesPerRequest: 0,
  autoResendUnfulfilledCommands: false,
  enableOfflineQueue: false,
  commandTimeout: timeoutMs,
  connectTimeout: Math.max(500, timeoutMs),
  // Ask a Redis that is loading its file again soon. By default ioredis waits as long as Redis estimates, up to 10 s.
  maxLoadingRetryTime: 100,
});

const retryAfter = (attempt: number): number => Math.min(25 * 2 ** Math.min(attempt, 5), 500);

/** @param timeoutMs a command that takes longer counts as lost, though it may still be executed */
export function createClient(location: Location, timeoutMs: number): RedisClient {
  const client = construct(location, timeoutMs);
  // Without a listener an unreachable Redis would end the process; each command reports its own failure.
  client.on('error', () => {});
  if (client instanceof Redis) together(client);
  else client.on('+node', together);
  return client;
}

/**
 * Sends all commands of one turn of the event loop in one write. A system call for each command would cost more than
 * everything else that the command needs. The write happens when the sockets that are ready have been read.
 */
function together(node: Redis): void {
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
  const options = { ...onceOnly(timeoutMs), retryStrategy: retryAfter };
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
      sentinelRetryStrategy: retryAfter,
    });
  }
  return new Cluster(location.cluster.map(addressOf), {
    lazyConnect: true,
    enableOfflineQueue: false,
    // Anything but 0 sends a command again whose connection broke.
    retryDelayOnFailover: 0,
    retryDelayOnClusterDown: 0,
    clusterRetryStrategy: retryAfter,
    redisOptions: { ...onceOnly(timeoutMs), ...access },
  });
}

function addressOf(url: string): { host: string; port: number } {
  const { hostname, port } = new URL(url);
  return { host: hostname, port: Number(port) || 6379 };
}

/** Without the members that are undefined, because ioredis would take `undefined` as their value. */
function defined<T extends object>(object: T): { [K in keyof T]?: NonNullable<T[K]> } {
  return Object.fromEntries(Object.entries(object).filter(([, value]) => value !== undefined)) as never;
}

/** Resolves when the client is ready. @throws {StoreUnavailable} after `withinMs` */
export async function connect(client: RedisClient, withinMs: number): Promise<void> {
  let last = 'no answer';
  const remember = (error: Error) => {
    last = error.message || String((error as NodeJS.ErrnoException).code);
  };
  client.on('error', remember);
  const ready = new Promise<void>((resolve) => client.once('ready', () => resolve()));
  // A failed first attempt is followed by others; the timer decides.
  client.connect().catch(remember);
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new StoreUnavailable(`redis cannot be reached: ${last}`)), withinMs);
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
 * A script's command. It does less than ioredis' own commands, which cost more than the rest of a start: it is encoded
 * once, a text's character as one byte, and all commands share one timer.
 */
export class ScriptCommand extends Command {
  readonly #encoded: Buffer;

  /**
   * @param script its digest for `evalsha`, its text for `eval`
   * @param args texts are latin1
   */
  constructor(
    name: 'evalsha' | 'eval',
    script: string | Buffer,
    keys: readonly string[],
    args: readonly Argument[],
  ) {
    super(name, NO_ARGUMENTS, REPLY_AS_BYTES);
    // A cluster's client reads the keys, to find their node.
    this.args = [script, keys.length, ...keys];
    this.#encoded = encode(name, this.args as Argument[], args);
  }

  override toWritable(): Buffer {
    return this.#encoded;
  }

  /** ioredis calls this when it sends the command. */
  override setTimeout(ms: number): void {
    const deadlines = byLimit.get(ms) ?? new Deadlines(ms);
    byLimit.set(ms, deadlines);
    deadlines.add(this);
  }
}

const NO_ARGUMENTS: string[] = [];
const REPLY_AS_BYTES = { replyEncoding: null };

function encode(name: string, start: readonly Argument[], args: readonly Argument[]): Buffer {
  let text = `*${1 + start.length + args.length}\r\n$${name.length}\r\n${name}\r\n`;
  for (const part of start) text += partOf(part);
  for (const part of args) text += partOf(part);
  return Buffer.from(text, 'latin1');
}

function partOf(part: Argument): string {
  const latin1 = typeof part === 'object' ? part.toString('latin1') : String(part);
  return `$${latin1.length}\r\n${latin1}\r\n`;
}

/** How often overdue commands are looked for: as a share of their time limit, and at least. Until then answered ones are kept. */
const LOOKS = 20;
const LOOK_EVERY_MS = 10;

/** Rejects commands that got no answer within a time limit. One timer serves all of them. */
class Deadlines {
  readonly #limitMs: number;
  #commands: { command: ScriptCommand; atMs: number }[] = [];
  #isLooking = false;

  constructor(limitMs: number) {
    this.#limitMs = limitMs;
  }

  add(command: ScriptCommand): void {
    this.#commands.push({ command, atMs: performance.now() + this.#limitMs });
    if (!this.#isLooking) this.#lookLater();
  }

  #lookLater(): void {
    this.#isLooking = true;
    setTimeout(
      () => {
        const nowMs = performance.now();
        const open = this.#commands.filter(({ command }) => !command.isSettled);
        this.#commands = open.filter(({ atMs }) => atMs > nowMs);
        for (const { command, atMs } of open)
          if (atMs <= nowMs) command.reject(new Error('Command timed out'));
        this.#isLooking = this.#commands.length > 0;
        if (this.#isLooking) this.#lookLater();
      },
      Math.min(this.#limitMs / LOOKS, LOOK_EVERY_MS),
    );
  }
}

/** By time limit: each store has one. */
const byLimit = new Map<number, Deadlines>();
