import { FileKeySource } from '../auth/file-key-source.ts';
import type { KeySource } from '../auth/key-source.ts';
import type { AuthOptions, RedisKeysOptions, UpstreamKeyOptions } from '../auth/options.ts';
import { KeysUnavailable, RedisKeyList } from '../auth/redis/key-list.ts';
import { RedisKeySource } from '../auth/redis/redis-key-source.ts';
import type { ReloadableKeysOptions } from '../auth/reloadable-keys.ts';
import { locationOf } from '../idempotency/stores/open-store.ts';
import { ClientTls } from '../kernel/client-tls.ts';
import { systemClock } from '../kernel/clock.ts';
import { Certificates } from './certificates.ts';

/** A source with a list of keys. */
export interface ListedKeys {
  keys: Exclude<AuthOptions['keys'], UpstreamKeyOptions>;
  pepper: string | undefined;
}

/**
 * Opens the configured source of secret keys.
 *
 * @throws {Error} with a message for the operator if the keys cannot be loaded
 */
export async function openKeySource(
  { keys, pepper }: ListedKeys,
  options: ReloadableKeysOptions,
  certificates?: Certificates,
): Promise<KeySource> {
  if (keys.source === 'file') return await FileKeySource.open({ ...options, path: keys.path, pepper });
  if (pepper === undefined) throw new TypeError('the source redis needs auth.pepper');
  return await RedisKeySource.open({ ...options, list: await openKeyList(keys, certificates), pepper });
}

/**
 * Connects to the Redis of the secret keys.
 *
 * @param certificates opens the files of `auth.keys.tls`, and closes them. Default: they are closed with the list
 * @throws {KeysUnavailable} with a message for the operator
 */
export async function openKeyList(
  redis: RedisKeysOptions,
  certificates?: Certificates,
): Promise<RedisKeyList> {
  // A gateway with a key file and SQLite never loads ioredis.
  const { connect, createClient } = await import('../idempotency/stores/redis/client.ts');
  const { tls: files } = redis;
  const opened = certificates ?? new Certificates({ clock: systemClock });
  const tls =
    typeof files === 'object'
      ? new ClientTls(await opened.open('auth.keys.tls', files), files.serverName)
      : undefined;
  const client = createClient(locationOf(redis), redis.timeoutMs, tls);
  if (!certificates) client.once('end', () => opened.close());
  try {
    await connect(client, redis.connectTimeoutMs);
    return new RedisKeyList(client, redis.prefix);
  } catch (error) {
    client.disconnect();
    throw new KeysUnavailable(`the secret keys cannot be loaded: ${(error as Error).message}`);
  }
}
