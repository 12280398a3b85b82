import { beforeEach, describe, expect, it, vi } from 'vitest';
import { isInForce } from '../../src/auth/key-source.ts';
import { addKey, type KeyPlace, keyFilePlace, openSource, redisPlace } from '../support/key-sources.ts';
import { startRedis } from '../support/redis-server.ts';
import { until } from '../support/until.ts';

const redis = await startRedis({ appendonly: false });

const places: Record<string, () => KeyPlace> = { file: keyFilePlace, redis: () => redisPlace(redis) };

describe.each(Object.keys(places))('the key source %s', (kind) => {
  let place: KeyPlace;
  beforeEach(async () => {
    await redis.admin.flushall();
    place = (places[kind] as () => KeyPlace)();
    await place.edit((editor) => addKey(editor, 'M-A', 'a', 'secret-of-merchant-a'));
  });

  it('finds the entry of a secret key, and of no other', async () => {
    const { source } = await openSource(place.keys);
    expect(source.find('secret-of-merchant-a')).toMatchObject({
      merchantCode: 'M-A',
      keyId: 'a',
      scopes: ['*'],
    });
    expect(source.find('secret-of-merchant-b')).toBeUndefined();
    expect([...(source.entries() ?? [])]).toHaveLength(1);
    expect(source.health()).toMatchObject({
      ok: true,
      keys: 1,
      detail: expect.stringMatching(/^1 key from [^,]*$/),
    });
  });

  it('puts an added key in force, and tells its listeners', async () => {
    const { source, reloads } = await openSource(place.keys);
    const { generation } = source;
    const listener = vi.fn();
    source.onChange(listener);
    await place.edit((editor) => addKey(editor, 'M-B', 'b', 'secret-of-merchant-b'));
    await until(() => source.find('secret-of-merchant-b'));
    expect(source.find('secret-of-merchant-a')).toBeDefined();
    expect(source.generation).not.toBe(generation);
    expect(listener).toHaveBeenCalledTimes(1);
    expect(reloads).toMatchObject([{ ok: true, keys: 2 }]);
  });

  it('finds the entry of an earlier one again, with its revocation', async () => {
    const { source } = await openSource(place.keys);
    const earlier = source.find('secret-of-merchant-a');
    if (!earlier) throw new Error('the key is not there');
    expect(isInForce(earlier, Date.now())).toBe(true);
    await place.edit((editor) => editor.setTime('M-A', 'a', 'revokedAt', new Date(0).toISOString()));
    const later = await until(() => {
      const found = source.current(earlier);
      return found?.revokedAtMs === 0 ? found : undefined;
    });
    expect(isInForce(later, Date.now())).toBe(false);
  });

  it('keeps the old keys if it refuses the new ones, and says why', async () => {
    const { source, reloads } = await openSource(place.keys);
    await place.damage();
    await until(() => reloads.length > 0);
    expect(reloads).toMatchObject([{ ok: false, error: expect.stringMatching(/./) }]);
    expect(source.find('secret-of-merchant-a')).toBeDefined();
    expect(source.health()).toMatchObject({
      ok: true,
      keys: 1,
      detail: expect.stringContaining('refused: '),
    });
    await source.reload();
    expect(reloads).toMatchObject([{ ok: false }, { ok: false }]);
  });

  it('reports a reload, also of unchanged keys', async () => {
    const { source, reloads } = await openSource(place.keys);
    await source.reload();
    await source.reload();
    expect(reloads).toMatchObject([{ ok: true, keys: 1 }, { ok: true }]);
    expect(reloads[0]?.version).toBe(reloads[1]?.version);
  });

  it('does not start with another pepper than that of the hashes', async () => {
    await expect(openSource(place.keys, 'another-pepper-of-some-length')).rejects.toThrow(
      /refused:\n {2}pepperCheck: auth\.pepper is not the pepper that made these hashes/,
    );
  });

  it('does not start without keys', async () => {
    await redis.admin.flushall();
    const empty = kind === 'file' ? keyFilePlace() : place;
    await expect(openSource(empty.keys)).rejects.toThrow(/ENOENT|there are no secret keys in redis/);
  });

  it('does not reload when it is closed', async () => {
    const closed = await openSource(place.keys);
    const witness = await openSource(place.keys);
    await closed.source.close();
    await place.edit((editor) => addKey(editor, 'M-B', 'b', 'secret-of-merchant-b'));
    await until(() => witness.source.find('secret-of-merchant-b'));
    expect(closed.reloads).toEqual([]);
    expect(closed.source.find('secret-of-merchant-a')).toBeDefined();
  });

  it('loses none of many changes at once', async () => {
    const numbers = Array.from({ length: 12 }, (_, i) => i);
    const change = (i: number) =>
      place.edit((editor) => {
        // As `keys issue` does, each change takes the next free id.
        const taken = editor.file.merchants.find(({ code }) => code === 'M-B')?.keys.length ?? 0;
        addKey(editor, 'M-B', `k${taken}`, `secret-of-key-${i}-0123`);
      });
    // A file has a lock instead, and its second command is refused.
    if (kind === 'file') for (const i of numbers) await change(i);
    else await Promise.all(numbers.map(change));
    const { source } = await openSource(place.keys);
    expect(numbers.filter((i) => source.find(`secret-of-key-${i}-0123`) === undefined)).toEqual([]);
    expect(source.health().keys).toBe(13);
  });

  it('refuses a second key with the same id or the same secret', async () => {
    const twice = (id: string, secret: string) => place.edit((editor) => addKey(editor, 'M-A', id, secret));
    await expect(twice('a', 'another-secret-0123')).rejects.toThrow(/has a key with the id a already/);
    await expect(twice('b', 'secret-of-merchant-a')).rejects.toThrow(/is (?:the same|there already)/);
    await expect(twice('b c', 'another-secret-0123')).rejects.toThrow(/id: must be a string of 1 to 64/);
  });
});
