import { Cluster, Redis } from 'ioredis';
import { StoreUnavailable } from '../../store.ts';

/** Where the records are: one server, the master that sentinels name, or a cluster. */
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
 * Options that never execute twice and never hang: ioredis' defaults send a command again after a reconnect, and hold
 * commands back while the connection is down. With both off, a `commandTimeout` is needed besides, because replies
 * that were under way at a reconnect never come.
 */
const onceOnly = (timeoutMs: number) => ({
  lazyConnect: true,
  maxRetriesPerRequest: 0,
  autoResendUnfulfilledCommands: false,
  enableOfflineQueue: false,
  commandTimeout: timeoutMs,
  connectTimeout: Math.max(500, timeoutMs),
  // One that still loads its file is asked again soon: by default only after the time that it thinks it takes, up to 10 s.
  maxLoadingRetryTime: 100,
});

const retryAfter = (attempt: number): number => Math.min(25 * 2 ** Math.min(attempt, 5), 500);

/** @param timeoutMs a command that takes longer is taken for lost, though it may still be executed */
export function createClient(location: Location, timeoutMs: number): RedisClient {
  const client = construct(location, timeoutMs);
  // Without a listener an unreachable Redis would end the process; each command reports its own failure.
  client.on('error', () => {});
  if (client instanceof Redis) together(client);
  else client.on('+node', together);
  return client;
}

/**
 * Lets a turn's commands go out in one piece: a write for each of them is a system call for each, which costs more than all
 * the rest of it. Nothing waits longer than until the sockets that are ready have been read.
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

/** Without the members that are undefined: the library takes their presence for a value. */
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
