import { Cluster, Redis, SentinelConnector } from 'ioredis';
import type { ClientTls, ClientTlsOptions } from '../../lib/client-tls.ts';
import { within } from '../../lib/clock.ts';
import { StoreUnavailable } from '../contract.ts';

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

/**
 * @param timeoutMs a command that takes longer is rejected, though Redis may still execute it
 * @param tls for the connections that use TLS. Default: servers must have a certificate of a well-known authority
 */
export function createClient(location: Location, timeoutMs: number, tls?: ClientTls): RedisClient {
  const client = construct(location, timeoutMs, tls ? following(tls) : {});
  // Without a listener an unreachable Redis would end the process. Each command reports its own failure.
  client.on('error', () => {});
  const prepare = (node: Redis) => {
    batchWrites(node);
    ignoreLaterErrors(node);
  };
  if (client instanceof Redis) prepare(client);
  else {
    refuseWhileMoving(client);
    client.on('+node', (node: Redis) => {
      prepare(node);
      prepareDuplicates(node);
      ignoreFailedAsking(node);
    });
  }
  return client;
}

/**
 * While a slot moves to another master, a script may find only some of its keys. ioredis would send it again to any node, for longer
 * than its time limit.
 */
function refuseWhileMoving(cluster: Cluster): void {
  const self = cluster as unknown as {
    handleError(error: Error, ttl: object, how: { defaults(): void }): void;
  };
  const handleError = self.handleError.bind(cluster);
  self.handleError = (error, ttl, how) =>
    error.message.startsWith('TRYAGAIN') ? how.defaults() : handleError(error, ttl, how);
}

/** ioredis sends ASKING before a command for a slot that moves, and ignores its promise: its rejection would end the process. */
function ignoreFailedAsking(node: Redis): void {
  const asking = node.asking.bind(node) as () => Promise<'OK'>;
  node.asking = () => {
    const answer = asking();
    answer.catch(() => {});
    return answer;
  };
}

/** A cluster's client duplicates a node's connection whenever it asks which node has which slots, and listens to the first error of the copy only. */
function prepareDuplicates(node: Redis): void {
  const duplicate = node.duplicate.bind(node);
  node.duplicate = (...args) => {
    const copy = duplicate(...args);
    ignoreLaterErrors(copy);
    return copy;
  };
}

/**
 * ioredis listens to the first error of a connection only. Under TLS a second one may follow, such as the alert of a server
 * whose handshake was cut off, and without a listener it would end the process.
 */
function ignoreLaterErrors(node: Redis): void {
  const ignore = () => {};
  const listen = () => {
    if (node.stream?.listeners('error').includes(ignore) === false) node.stream.on('error', ignore);
  };
  // The connection is opened within this turn, or behind sentinels later. A client to a sentinel is connecting already.
  setImmediate(listen);
  node.on('connecting', () => setImmediate(listen));
  node.on('connect', listen);
  node.on('error', listen);
}

/** Asks sentinels for the master, as ioredis does. It makes clients for that itself, which need listeners too. */
class Sentinels extends SentinelConnector {
  constructor(options: ConstructorParameters<typeof SentinelConnector>[0]) {
    super(options);
    const self = this as unknown as { connectToSentinel(...args: unknown[]): Redis };
    const connectToSentinel = self.connectToSentinel.bind(this);
    self.connectToSentinel = (...args) => {
      const client = connectToSentinel(...args);
      client.on('error', () => {});
      ignoreLaterErrors(client);
      return client;
    };
  }
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

/** ioredis reads this object for each new connection, so it is changed in place when the certificate changes. */
function following(tls: ClientTls): ClientTlsOptions {
  const options = { ...tls.options };
  tls.certificate.onChange(() => Object.assign(options, tls.options));
  return options;
}

function construct(
  location: Location,
  timeoutMs: number,
  secure: ClientTlsOptions | Record<string, never>,
): RedisClient {
  const options = { ...onceOnly(timeoutMs), retryStrategy: retryAfterMs };
  if ('url' in location)
    return new Redis(location.url, { ...options, ...(isSecure(location.url) ? { tls: secure } : {}) });
  const { tls, ...login } = location.credentials;
  if ('sentinels' in location) {
    const sentinels = location.sentinels.nodes.map(addressOf);
    return new Redis({
      ...options,
      ...defined(login),
      // Without enableTLSForSentinelMode, ioredis connects to the master in plain text in spite of `tls`.
      ...(tls ? { tls: secure, enableTLSForSentinelMode: true } : {}),
      ...(location.sentinels.nodes.some(isSecure) ? { sentinelTLS: secure } : {}),
      sentinels,
      // Its constructor takes the options of sentinels, and ioredis' type says any options.
      Connector: Sentinels as never,
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
    redisOptions: {
      ...onceOnly(timeoutMs),
      ...defined(login),
      ...(tls || location.cluster.some(isSecure) ? { tls: secure } : {}),
    },
  });
}

/**
 * Asks the sentinels how many replicas follow their master, those that are away included.
 *
 * @returns the largest answer. 0: there are no sentinels, or none of them answers
 */
export async function replicasOfSentinels(
  location: Location,
  timeoutMs: number,
  tls?: ClientTls,
): Promise<number> {
  if (!('sentinels' in location)) return 0;
  const { name, nodes } = location.sentinels;
  const counts = nodes.map(async (node) => {
    const secure = isSecure(node) ? { tls: { ...tls?.options } } : {};
    const sentinel = new Redis({ ...onceOnly(timeoutMs), ...secure, ...addressOf(node) });
    sentinel.on('error', () => {});
    ignoreLaterErrors(sentinel);
    const ask = async () => {
      await sentinel.connect();
      return ((await sentinel.call('SENTINEL', 'REPLICAS', name)) as unknown[]).length;
    };
    try {
      return (await within(ask(), timeoutMs)) ?? 0;
    } catch {
      return 0;
    } finally {
      sentinel.disconnect();
    }
  });
  return Math.max(...(await Promise.all(counts)));
}

const isSecure = (url: string): boolean => url.startsWith('rediss:');

function addressOf(url: string): { host: string; port: number } {
  const { hostname, port } = new URL(url);
  return { host: hostname, port: Number(port) || 6379 };
}

/** Removes the members that are undefined, because ioredis would use `undefined` in place of its default. */
function defined<T extends object>(object: T) {
  const members = Object.entries(object).filter(([, value]) => value !== undefined);
  return Object.fromEntries(members) as { [K in keyof T]?: NonNullable<T[K]> };
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
