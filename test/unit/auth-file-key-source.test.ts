import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { renameSync, statSync, symlinkSync, utimesSync, writeFileSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, onTestFinished, test, vi } from 'vitest';
import { FileKeySource, type FileKeySourceOptions } from '../../src/keys/file-key-source.ts';
import { replaceFile, temporaryFolder } from '../support/config.ts';
import { emitTo } from '../support/emit.ts';

const fileOf = (...secrets: string[]) => {
  const keys = secrets.map((secret, i) => `{ id: k${i}, dangerouslyPlainSecret: ${secret} }`);
  return `merchants: [{ code: M, keys: [${keys.join(', ')}] }]\n`;
};

function keyFile(text: string): string {
  const path = join(temporaryFolder(), 'keys.yaml');
  writeFileSync(path, text);
  return path;
}

/** A source that polls every 10 ms, and its reloads. By default its file has one key. */
async function openSource(path = keyFile(fileOf('one')), options: Partial<FileKeySourceOptions> = {}) {
  const reloads: { ok: boolean; keys?: number; error?: string }[] = [];
  const emit = emitTo({
    keys_reloaded: ({ keys }) => reloads.push({ ok: true, keys }),
    keys_refused: ({ reason: error }) => reloads.push({ ok: false, error }),
  });
  const source = await FileKeySource.open({ path, pollMs: 10, emit, ...options });
  onTestFinished(() => source.close());
  return { path, source, reloads };
}

const until = (check: () => void) => vi.waitFor(check, { timeout: 15_000, interval: 5 });

describe('at start', () => {
  test('mistakes are reported with the path of the file', async () => {
    const path = keyFile('merchants: [{ code: M, keys: [{ id: a b }] }]');
    await expect(openSource(path)).rejects.toThrow(
      `the key file ${path} is refused:\n  merchants[0].keys[0].id: must be a string of 1 to 64 printable`,
    );
  });

  test('a file that is missing, no file or over 64 MiB is refused', async () => {
    await expect(openSource(join(temporaryFolder(), 'a'))).rejects.toThrow(
      /cannot be read \(ENOENT\)\n {2}oncegate keys issue --file \S+a --merchant CODE makes it, .*\n {2}oncegate init makes /,
    );
    await expect(openSource(temporaryFolder())).rejects.toThrow('is not a regular file');
    const large = keyFile(`# ${'x'.repeat(64 * 1024 * 1024)}\n${fileOf('one')}`);
    await expect(openSource(large)).rejects.toThrow('is larger than 67108864 bytes');
  });
});

test('merchants whose last secret key is gone are named once, and not those whose keys were revoked or had expired', async () => {
  const merchants = (...codes: string[]) => {
    const each = codes.map(
      (code) => `{ code: ${code}, keys: [{ id: k, dangerouslyPlainSecret: of-${code} }] }`,
    );
    return `merchants: [${each.join(', ')}]\n`;
  };
  const path = keyFile(merchants('M-1', 'M-2', 'M-3'));
  const told: unknown[] = [];
  const emit = emitTo({ merchants_removed: (fields) => told.push(fields) });
  const source = await FileKeySource.open({ path, pollMs: 60_000, emit });
  onTestFinished(() => source.close());
  replaceFile(path, merchants('M-2'));
  await source.reload();
  replaceFile(path, merchants('M-2', 'M-4'));
  await source.reload();
  expect(told).toEqual([{ removed: 2, merchants: ['M-1', 'M-3'] }]);
  // Of M-5 another key is left, but not in force. The others had none in force before.
  const past = '2020-01-01T00:00:00Z';
  const old = (code: string, member: string) =>
    `{ code: ${code}, keys: [{ id: old, ${member}: ${past}, dangerouslyPlainSecret: old-of-${code} }] }`;
  const ended = [old('M-5', 'revokedAt'), old('M-6', 'revokedAt'), old('M-7', 'expiresAt')].join(', ');
  const key = '{ id: k, dangerouslyPlainSecret: of-M-5 }';
  replaceFile(path, `merchants: [${ended.replace('keys: [', `keys: [${key}, `)}]\n`);
  await source.reload();
  replaceFile(path, `merchants: [${old('M-5', 'revokedAt')}]\n`);
  await source.reload();
  // A secret key that another merchant gets is gone too.
  replaceFile(path, merchants('M-8'));
  await source.reload();
  replaceFile(path, merchants('M-8').replace('code: M-8', 'code: M-9'));
  await source.reload();
  expect(told.slice(1)).toEqual([
    { removed: 2, merchants: ['M-2', 'M-4'] },
    { removed: 1, merchants: ['M-5'] },
    { removed: 1, merchants: ['M-8'] },
  ]);
});

describe('a changed file is loaded', () => {
  test('when another file with the same size and time is renamed to its path', async () => {
    const { path, source } = await openSource();
    writeFileSync(`${path}.new`, fileOf('two'));
    const { atime, mtime, size } = statSync(path);
    utimesSync(`${path}.new`, atime, mtime);
    expect(statSync(`${path}.new`).size).toBe(size);
    renameSync(`${path}.new`, path);
    await until(() => expect(source.find('two')).toBeDefined());
    expect(source.find('one')).toBeUndefined();
  });

  test('when an editor renames it and creates a new file', async () => {
    const { path, source, reloads } = await openSource();
    renameSync(path, `${path}~`);
    await until(() =>
      expect(reloads).toMatchObject([{ ok: false, error: 'the file: cannot be read (ENOENT)' }]),
    );
    expect(source.find('one')).toBeDefined();
    writeFileSync(path, fileOf('two'));
    await until(() => expect(source.find('two')).toBeDefined());
  });

  test('when the symlink to its folder is swapped, as Kubernetes does for config maps', async () => {
    const root = temporaryFolder();
    for (const state of ['a', 'b', 'c']) {
      await mkdir(join(root, state));
      writeFileSync(join(root, state, 'keys.yaml'), fileOf(`key-${state}`));
    }
    symlinkSync('a', join(root, '..data'));
    symlinkSync('..data/keys.yaml', join(root, 'keys.yaml'));
    const { source, reloads } = await openSource(join(root, 'keys.yaml'));
    for (const state of ['b', 'c', 'a']) {
      symlinkSync(state, join(root, '..next'));
      renameSync(join(root, '..next'), join(root, '..data'));
      await until(() => expect(source.find(`key-${state}`)).toBeDefined());
    }
    expect(reloads).toHaveLength(3);
  });

  test('and reported once, but not if only its time changed', async () => {
    const { path, reloads } = await openSource();
    const witness = await openSource();
    for (const [i, secrets] of [['two'], ['two', 'three']].entries()) {
      // When the witness has reported its later change, the first source has polled its touched file, too.
      utimesSync(path, i, i);
      replaceFile(witness.path, fileOf(...secrets));
      await until(() => expect(witness.reloads).toHaveLength(i + 1));
    }
    expect(reloads).toEqual([]);
    replaceFile(path, fileOf('two', 'three'));
    await until(() => expect(reloads).toMatchObject([{ ok: true, keys: 2 }]));
  });
});

test('a version that could not be read, because the process could open no more files, is in force once it can', async () => {
  const source = JSON.stringify(new URL('../../src/keys/file-key-source.ts', import.meta.url));
  const [path, next] = [keyFile(fileOf('one')), keyFile(fileOf('two'))].map((file) => JSON.stringify(file));
  const program = `
    import { closeSync, openSync, renameSync } from 'node:fs';
    import { FileKeySource } from ${source};
    const { promise: refused, resolve: refuse } = Promise.withResolvers();
    const { promise: reloaded, resolve: reload } = Promise.withResolvers();
    const told = { keys_refused: ({ reason }) => refuse(reason), keys_reloaded: reload };
    const emit = (event, of) => told[event]?.(of);
    const keys = await FileKeySource.open({ path: ${path}, pollMs: 10, retryMs: 50, emit });
    setInterval(() => {}, 1000);
    const held = [];
    try {
      for (;;) held.push(openSync('/dev/null'));
    } catch {}
    renameSync(${next}, ${path});
    const reason = await refused;
    for (const file of held) closeSync(file);
    await reloaded;
    console.log(JSON.stringify([reason, keys.find('one') ?? 'revoked', keys.find('two')?.keyId]));
    process.exit();`;
  const command = 'ulimit -n 100 && exec "$0" --input-type=module -e "$1"';
  const { stdout } = await promisify(execFile)('sh', ['-c', command, process.execPath, program], {
    timeout: 15_000,
  });
  expect(JSON.parse(stdout)).toEqual(['the file: cannot be read (EMFILE)', 'revoked', 'k0']);
});

describe('reload()', () => {
  /** A source that does not poll during a test. */
  const openWithoutPolling = () => openSource(undefined, { pollMs: 3_600_000 });

  test('reads the file at once, and reports it even if nothing has changed', async () => {
    const { path, source, reloads } = await openWithoutPolling();
    writeFileSync(path, fileOf('two', 'three'));
    await source.reload();
    expect(source.find('one')).toBeUndefined();
    expect(source.find('three')?.keyId).toBe('k1');
    await source.reload();
    expect(reloads).toEqual([
      { ok: true, keys: 2 },
      { ok: true, keys: 2 },
    ]);
  });

  test('keeps the old keys if the file is broken, says why each time and in its health, and tells listeners of new ones only', async () => {
    const { path, source, reloads } = await openWithoutPolling();
    const listener = vi.fn();
    source.onChange(listener);
    writeFileSync(path, 'merchants: [{ code: M, keys: [{ id: a, dangerouslyPlainSecret: "sk_leak x" }] }]');
    await source.reload();
    await source.reload();
    expect(listener).not.toHaveBeenCalled();
    const mistake = expect.stringContaining('merchants[0].keys[0].dangerouslyPlainSecret');
    const refused = { ok: false, error: mistake };
    expect(reloads).toMatchObject([refused, refused]);
    const detail = expect.stringContaining('the newest version was refused');
    expect(source.health()).toMatchObject({ keys: 1, detail });
    expect(JSON.stringify([reloads, source.health()])).not.toContain('sk_leak');
    expect(source.find('one')).toBeDefined();
    writeFileSync(path, fileOf('one', 'two'));
    await source.reload();
    expect(listener).toHaveBeenCalledTimes(1);
    expect(reloads.at(-1)?.ok).toBe(true);
    expect(source.health()).toEqual({ detail: `2 keys from ${path}`, keys: 2 });
  });

  test('counts a broken file for as long as it is there, so that its alert lasts, and warns of it', async () => {
    let refusals = 0;
    const emit = emitTo({
      keys_refused: () => refusals++,
      keyReloads: ({ result }) => (refusals += +(result === 'refused')),
    });
    const { path, source } = await openSource(undefined, { pollMs: 3_600_000, retryMs: 5, emit });
    expect(source.health().warning).toBeUndefined();
    writeFileSync(path, 'merchants: nonsense');
    await source.reload();
    await until(() => expect(refusals).toBeGreaterThan(3));
    expect(source.health().warning).toBe('the newest version was refused: a key that it revokes still works');
    writeFileSync(path, fileOf('two'));
    await source.reload();
    expect(source.health().warning).toBeUndefined();
  });

  test('never replaces newer keys with older ones', async () => {
    const { path, source, reloads } = await openWithoutPolling();
    // 5000 keys in YAML take long to parse.
    writeFileSync(path, fileOf(...Array.from({ length: 5000 }, (_, i) => `old-${i}`)));
    const parsing = once(process, 'worker');
    const slow = source.reload();
    await parsing;
    renameSync(keyFile(fileOf('new')), path);
    await Promise.all([source.reload(), slow]);
    expect(reloads).toMatchObject([{ keys: 5000 }, { keys: 1 }]);
    expect(source.find('new')).toBeDefined();
    expect(source.find('old-0')).toBeUndefined();
  });
});

test('a closed source does not reload', async () => {
  const closed = await openSource();
  const witness = await openSource(closed.path);
  closed.source.close();
  writeFileSync(witness.path, fileOf('two'));
  await until(() => expect(witness.reloads).toHaveLength(1));
  expect(closed.reloads).toEqual([]);
  expect(closed.source.find('one')).toBeDefined();
});
