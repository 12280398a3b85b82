import net from 'node:net';
import tls from 'node:tls';
import {
  AbstractConnector,
  Cluster,
  Redis,
  SentinelConnector,
  type RedisOptions as ServerOptions,
} from 'ioredis';
import type { ClientTls } from '../../lib/certificate.ts';
import { type Clock, systemClock, within } from '../../lib/clock.ts';
import type { Emit } from '../../telemetry/emit.ts';
import type { RedisSection } from '../store-options.ts';

/** One server, the master that sentinels name, or a cluster. `tls`: a section, which says how, counts as true. */
export type Location = Partial<
  Pick<RedisSection, 'url' | 'sentinels' | 'cluster' | 'username' | 'password' | 'tls'>
>;

type Section = Pick<RedisSection, 'prefix' | 'timeoutMs' | 'connectTimeoutMs'> &
  Partial<RedisSection['durability']>;

/** The section `store`, and what else the register needs. */
export interface RedisOptions extends Section {
  location: Location;
  /** Names the probe that a health check writes. */
  gatewayId: string;
  /** `lock.nodes`. Empty: the store's own Redis holds the leases. */
  lockNodes: readonly string[];
  /** For connections that use TLS. Default: servers must have a certificate of a well-known authority. `close` closes it. */
  tls?: ClientTls | undefined;
  emit?: Emit;
  clock: Clock;
}

export type RedisClient = Redis | Cluster;

/** The pause before the next attempt to connect, in milliseconds. */
const retryAfterMs = (attempt: number): number => Math.min(25 * 2 ** Math.min(attempt, 5), 500);

/**
 * @param timeoutMs a command that takes longer is rejected, though Redis may still execute it
 * @param tls for the connections that use TLS. Default: servers must have a certificate of a well-known authority
 */
export function createClient(location: Location, timeoutMs: number, tls?: ClientTls): RedisClient {
  const client = construct(location, timeoutMs, tls);
  // Without a listener ioredis prints errors. Each command reports its own failure.
  client.on('error', ignore);
  if (client instanceof Cluster) {
    refuseWhileMoving(client);
    client.on('+node', ignoreFailedAsking);
  } else leaveWithoutDatabase(client);
  return client;
}

function construct(location: Location, timeoutMs: number, clientTls?: ClientTls): RedisClient {
  const secure = {
    servername: clientTls?.options.servername,
    // ioredis reads it for each new connection, and the certificate may have changed.
    get secureContext() {
      return clientTls?.options.secureContext;
    },
  };
  // With these options no command is executed twice and none hangs. By default ioredis sends a command again after a reconnect, and
  // queues commands while it is disconnected. Without both it needs a `commandTimeout`, because the promise of a command that was in
  // flight during a reconnect may never settle.
  const options = {
    lazyConnect: true,
    maxRetriesPerRequest: 0,
    autoResendUnfulfilledCommands: false,
    enableOfflineQueue: false,
    commandTimeout: timeoutMs,
    connectTimeout: atLeastToConnect(timeoutMs),
    // While Redis loads its file, try again soon. By default ioredis waits as long as Redis estimates, up to 10 s.
    maxLoadingRetryTime: 100,
    retryStrategy: retryAfterMs,
    Connector,
  };
  const { url, sentinels, cluster = [], username, password } = location;
  if (url) return new Redis(url, { ...options, tls: isSecure(url) ? secure : undefined });
  const isTls = Boolean(location.tls) || cluster.some(isSecure);
  const ofNodes = { ...options, username, password, tls: isTls ? secure : undefined };
  if (sentinels)
    return new Redis({
      ...{
        ...ofNodes,
        name: sentinels.name,
        sentinels: sentinels.nodes.map(hostAndPort),
        Connector: Sentinels,
      },
      // Without it ioredis connects to the master in plain text in spite of `tls`.
      enableTLSForSentinelMode: isTls,
      sentinelTLS: sentinels.nodes.some(isSecure) ? secure : undefined,
      sentinelRetryStrategy: retryAfterMs,
    });
  return new Cluster(cluster.map(hostAndPort), {
    lazyConnect: true,
    enableOfflineQueue: false,
    // With any other value ioredis sends a command again after its connection broke.
    retryDelayOnFailover: 0,
    retryDelayOnClusterDown: 0,
    clusterRetryStrategy: retryAfterMs,
    redisOptions: ofNodes,
  });
}

/** A connection to another machine, with TLS and a handshake, takes longer than a command may. */
const atLeastToConnect = (timeoutMs: number): number => Math.max(500, timeoutMs);

const isSecure = (url: string): boolean => url.startsWith('rediss:');

function hostAndPort(url: string): { host: string; port: number } {
  const { hostname, port } = new URL(url);
  // An IPv6 address has brackets in a URL, and none elsewhere.
  return { host: hostname.replace(/^\[|\]$/g, ''), port: Number(port) || 6379 };
}

const ignore = () => {};

/** How often it is looked whether a connection is silent, in time limits of a command, and the least that such a limit counts as. */
const [LOOK_EVERY_LIMITS, LEAST_LIMIT_MS] = [5, 100];

/**
 * Adds to a connection what ioredis lacks:
 *
 * - A listener for every error. ioredis listens to the first one only. Under TLS a second one may follow, such as the alert of a
 *   server whose handshake was cut off, and would end the process.
 * - All commands of one turn of the event loop leave in one write, because a system call for each command costs more than the
 *   rest of the command. The write happens after all sockets that are ready have been read.
 * - A connection without any answer is given up. The peer may be gone in silence, such as by a power failure or behind a firewall, and
 *   the system tries for 15 minutes to reach it. `socketTimeout` of ioredis would cost two timers for each command.
 */
function prepared<S extends net.Socket>(stream: S, timeoutMs: number): S {
  stream.on('error', ignore);
  let before = { read: 0, written: 0, isAsked: false };
  const look = setInterval(() => {
    const [read, written] = [stream.bytesRead, stream.bytesWritten];
    const isSilent = read === before.read;
    if (isSilent && before.isAsked) stream.destroy(new Error('the connection was silent'));
    before = { read, written, isAsked: isSilent && written > before.written };
  }, LOOK_EVERY_LIMITS * Math.max(LEAST_LIMIT_MS, timeoutMs)).unref();
  stream.once('close', () => clearInterval(look));
  const write = stream.write.bind(stream) as (...args: unknown[]) => boolean;
  stream.write = (...args: unknown[]) => {
    if (stream.writableCorked === 0) {
      stream.cork();
      setImmediate(() => stream.uncork());
    }
    return write(...args);
  };
  return stream;
}

/** Opens the connections of a client to one server, and of the clients that a cluster's client makes. */
class Connector extends AbstractConnector {
  readonly #options: ServerOptions;

  constructor(options: unknown) {
    super((options as { disconnectTimeout: number }).disconnectTimeout);
    this.#options = options as ServerOptions;
  }

  override async connect() {
    const { host, port, tls: secure, commandTimeout } = this.#options;
    const to = { host: host as string, port: port as number };
    this.stream = prepared(
      secure ? tls.connect({ ...to, ...secure }) : net.connect(to),
      commandTimeout as number,
    );
    // The system may refuse at once, such as while there is no route. ioredis listens only after that, and reports this one.
    this.stream.once('error', (error) => {
      this.firstError = error;
    });
    return this.stream;
  }
}

/** Asks sentinels for the master, as ioredis does, with clients whose connections {@link Connector} opens. */
class Sentinels extends SentinelConnector {
  readonly #timeoutMs: number;

  constructor(options: unknown) {
    super(options as ConstructorParameters<typeof SentinelConnector>[0]);
    // A question to a sentinel is sent on a new connection, and counts from before it.
    this.#timeoutMs = atLeastToConnect((options as { commandTimeout: number }).commandTimeout);
    const self = this as unknown as { connectToSentinel(endpoint: object, more?: object): Redis };
    const connectToSentinel = self.connectToSentinel.bind(this);
    self.connectToSentinel = (endpoint, more) =>
      connectToSentinel(endpoint, { Connector, commandTimeout: this.#timeoutMs, ...more });
  }

  override async connect(emit: Parameters<SentinelConnector['connect']>[0]) {
    return prepared(await super.connect(emit), this.#timeoutMs);
  }
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

/** If Redis refuses the database that the address names, ioredis uses database 0, which has other records. */
function leaveWithoutDatabase(client: Redis): void {
  const select = client.select.bind(client) as (database: number) => Promise<'OK'>;
  client.select = (database: number) => {
    const answer = select(database);
    answer.catch((error) => client.stream.destroy(error));
    return answer;
  };
}

/** ioredis sends ASKING before a command for a slot that moves, and ignores its promise: its rejection would end the process. */
function ignoreFailedAsking(node: Redis): void {
  const asking = node.asking.bind(node) as () => Promise<'OK'>;
  node.asking = () => {
    const answer = asking();
    answer.catch(ignore);
    return answer;
  };
}

/**
 * Asks the sentinels how many replicas follow their master, those that are away included.
 *
 * @returns the largest answer, if there are sentinels and one of them answers
 */
export async function replicasOfSentinels(
  { sentinels }: Location,
  timeoutMs: number,
  tls?: ClientTls,
): Promise<number | undefined> {
  if (!sentinels) return undefined;
  const counts = sentinels.nodes.map(async (url) => {
    const sentinel = createClient({ url }, timeoutMs, tls) as Redis;
    try {
      // Rejects after one attempt, so that a sentinel that is away delays no health check.
      await within(systemClock, sentinel.connect(), timeoutMs);
      return ((await sentinel.call('SENTINEL', 'REPLICAS', sentinels.name)) as unknown[]).length;
    } catch {
      return [];
    } finally {
      sentinel.disconnect();
    }
  });
  const known = (await Promise.all(counts)).flat();
  return known.length > 0 ? Math.max(...known) : undefined;
}

/** Connects, and resolves when the client is ready, or after this time. In any case ioredis tries again. */
export async function connect(client: RedisClient, withinMs: number): Promise<void> {
  const ready = new Promise((resolve) => client.once('ready', resolve));
  client.connect().catch(ignore);
  await within(systemClock, ready, withinMs);
}

/** The client itself, or the masters of a cluster. */
export const mastersOf = (client: RedisClient): Redis[] =>
  client instanceof Redis ? [client] : client.nodes('master');

/** A node's address, in the form in which the client of a cluster names it. */
export const addressOf = ({ options }: Redis): string => `${options.host}:${options.port}`;
