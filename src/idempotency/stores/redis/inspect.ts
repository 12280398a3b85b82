import { setTimeout as sleep } from 'node:timers/promises';
import { Cluster, type Redis } from 'ioredis';
import type { Clock } from '../../../kernel/clock.ts';
import { StoreUnavailable } from '../../store.ts';
import type { RedisClient } from './connect.ts';

/** `INFO` as a map of field to value. */
async function info(node: Redis): Promise<Map<string, string>> {
  const lines = (await node.info()).split('\r\n');
  return new Map(
    lines.filter((line) => line.includes(':')).map((line) => line.split(/:(.*)/s) as [string, string]),
  );
}

/** Undefined if CONFIG is not allowed, as with many hosted servers. */
async function setting(node: Redis, name: string): Promise<string | undefined> {
  try {
    const [, value] = (await node.config('GET', name)) as string[];
    return value;
  } catch {
    return undefined;
  }
}

const AGAIN_AFTER_MS = 100;

/**
 * Checks the settings of Redis; of a cluster, those of every master. If a connection breaks or does not answer, it tries
 * again, because a cluster's client is ready before all of its masters are.
 *
 * @param replicas how many replicas a write waits for
 * @param untilMs on the monotonic clock: no new attempt after it
 * @returns settings under which a record can be lost, each one line
 * @throws {StoreUnavailable} if it is older than 7.0 (scripts with flags), evicts records, or does not answer in time
 */
export async function inspect(
  client: RedisClient,
  replicas: number,
  clock: Clock,
  untilMs: number,
): Promise<string[]> {
  for (;;) {
    try {
      return await inspectNodes(client, replicas);
    } catch (error) {
      const { name, message } = error as Error;
      // An error that Redis itself answered would be the same next time.
      if (error instanceof StoreUnavailable || name === 'ReplyError') throw error;
      if (clock.monotonicMs() >= untilMs)
        throw new StoreUnavailable(`redis cannot be reached: ${message}`, { cause: error });
      await sleep(AGAIN_AFTER_MS);
    }
  }
}

async function inspectNodes(client: RedisClient, replicas: number): Promise<string[]> {
  const nodes = client instanceof Cluster ? client.nodes('master') : [client];
  const warnings = await Promise.all(nodes.map((node) => inspectNode(node, replicas)));
  return [...new Set(warnings.flat())];
}

async function inspectNode(node: Redis, replicas: number): Promise<string[]> {
  const server = await info(node);
  refuseUnusable(server);
  const warnings: string[] = [];
  const fsync = await setting(node, 'appendfsync');
  if (server.get('aof_enabled') !== '1') {
    warnings.push(
      'redis runs without appendonly: a record is lost, and a payout may run again, when redis is killed',
    );
  } else if (fsync !== undefined && fsync !== 'always') {
    warnings.push(
      `redis has appendfsync ${fsync}: the last moment's records are lost when its machine fails`,
    );
  }
  const promotable = Number(server.get('connected_slaves') ?? 0);
  if (promotable > replicas) {
    warnings.push(
      `redis has ${promotable} ${promotable === 1 ? 'replica' : 'replicas'} and durability.replicas is ${replicas}: a failover loses records that had not reached the promoted one`,
    );
  }
  return warnings;
}

function refuseUnusable(server: Map<string, string>): void {
  const version = server.get('redis_version') ?? '0';
  if (Number.parseInt(version, 10) < 7) {
    throw new StoreUnavailable(`redis ${version} is too old: 7.0 or newer is needed`);
  }
  const policy = server.get('maxmemory_policy') ?? 'noeviction';
  if (policy !== 'noeviction') {
    throw new StoreUnavailable(
      `redis has maxmemory-policy ${policy}, which evicts records: it must be noeviction`,
    );
  }
}
