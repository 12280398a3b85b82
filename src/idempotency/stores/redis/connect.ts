import { Cluster, Redis } from 'ioredis';
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
