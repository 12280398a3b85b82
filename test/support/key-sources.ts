import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { onTestFinished } from 'vitest';
import { editKeyFile, type KeyEditor } from '../../src/auth/key-file-editor.ts';
import { hashOf, pepperCheckOf } from '../../src/auth/key-index.ts';
import type { KeySource } from '../../src/auth/key-source.ts';
import { authOptions, type RedisKeysOptions } from '../../src/auth/options.ts';
import type { RedisKeyList } from '../../src/auth/redis/key-list.ts';
import { editRedisKeys } from '../../src/auth/redis/redis-key-editor.ts';
import { type ListedKeys, openKeyList, openKeySource } from '../../src/gateway/key-sources.ts';
import { systemClock } from '../../src/kernel/clock.ts';
import type { KeyReload } from '../../src/kernel/context.ts';
import { newFolder } from './command.ts';
import type { RedisServer } from './redis-server.ts';

export const PEPPER = 'a-pepper-of-some-length';

/** A place for secret keys, which a test changes as the commands do. */
export interface KeyPlace {
  /** `auth.keys` of a configuration. */
  keys: ListedKeys['keys'];
  edit<T>(edit: (editor: KeyEditor) => T): Promise<T>;
  /** Makes the keys such that a gateway refuses them. */
  damage(): Promise<unknown>;
}

/** Adds a key whose secret is known. */
export function addKey(editor: KeyEditor, merchant: string, id: string, secret: string): void {
  editor.setPepperCheck(pepperCheckOf(PEPPER));
  editor.add(merchant, { id, hash: hashOf(PEPPER, secret) });
}

export function keyFilePlace(): KeyPlace {
  const path = join(newFolder(), 'keys.yaml');
  return {
    keys: { source: 'file', path },
    edit: async (edit) => editKeyFile(path, edit, PEPPER),
    damage: async () => writeFileSync(path, 'merchants: none\n'),
  };
}

export function redisKeys({ url }: Pick<RedisServer, 'url'>, more: object = {}): RedisKeysOptions {
  const { keys } = authOptions.parse({ pepper: PEPPER, keys: { source: 'redis', url, ...more } });
  if (keys.source !== 'redis') throw new Error('the keys are not in Redis');
  return keys;
}

/** The list in a Redis; closed after the test. */
export async function openList(keys: RedisKeysOptions): Promise<RedisKeyList> {
  const list = await openKeyList(keys);
  onTestFinished(() => list.close());
  return list;
}

export const HEAD = 'oncegate:{keys}:v1:head';
export const LIST = 'oncegate:{keys}:v1:list';

/** An empty server is expected. */
export function redisPlace(redis: RedisServer): KeyPlace {
  const keys = redisKeys(redis);
  return {
    keys,
    edit: async (edit) => await editRedisKeys(await openList(keys), edit, PEPPER),
    damage: () => redis.admin.multi().hset(HEAD, 'version', 'x').hset(HEAD, 'keys', '99').exec(),
  };
}

/** Opens a source and collects its reports; closed after the test. */
export async function openSource(
  keys: ListedKeys['keys'],
  pepper = PEPPER,
): Promise<{ source: KeySource; reloads: KeyReload[] }> {
  const reloads: KeyReload[] = [];
  const onReload = (reload: KeyReload) => void reloads.push(reload);
  const source = await openKeySource({ keys, pepper }, { clock: systemClock, onReload });
  onTestFinished(() => source.close());
  return { source, reloads };
}
