import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test, vi } from 'vitest';
import { Authenticator } from '../../src/keys/authenticate.ts';
import { FileKeySource } from '../../src/keys/file-key-source.ts';
import { OpenConnections } from '../../src/keys/open-connections.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { temporaryFolder } from '../support/config.ts';

const PEPPER = 'pepper-of-the-tests';
const START_MS = Date.parse('2026-06-01T00:00:00Z');

const fileOf = (...keys: string[]) => `merchants: [{ code: M-1, keys: [${keys.join(', ')}] }]`;
const key = (id: string, more = '') =>
  `{ id: ${id}, dangerouslyPlainSecret: sk_${id}${more && `, ${more}`} }`;

/** Sessions of keys from a file, with fake timers and a fake clock. */
async function open(text: string, pepper?: string) {
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval', 'Date'], now: START_MS });
  onTestFinished(() => void vi.useRealTimers());
  const path = join(temporaryFolder(), 'keys.yaml');
  writeFileSync(path, text);
  const clock = { ...systemClock, wallMs: () => Date.now(), monotonicMs: () => 0 };
  const keys = await FileKeySource.open({ path, pepper, pollMs: 3_600_000 });
  onTestFinished(() => keys.close());
  const authenticator = new Authenticator(keys, { realm: 'r' }, clock);
  const sessions = new OpenConnections(keys, clock);
  return {
    /** Opens a session with a secret key; `end` is a mock. */
    session(secret: string) {
      const authentication = authenticator.authenticate(['Authorization', `Bearer ${secret}`]);
      if (authentication.kind === 'refused') throw new Error(authentication.problem.code);
      const end = vi.fn();
      return { end, remove: sessions.add(authentication.key, end), authentication };
    },
    async reload(changed: string) {
      writeFileSync(path, changed);
      await keys.reload();
    },
  };
}

describe('a session ends at once when the key file', () => {
  test.each([
    ['no longer has its key', fileOf(key('b'))],
    ['revokes its key', fileOf(key('a', 'revokedAt: 2026-05-01T00:00:00Z'), key('b'))],
    ['gives its id to another secret key', fileOf('{ id: a, dangerouslyPlainSecret: sk_c }', key('b'))],
    ['takes a scope from its key', fileOf(key('a', 'scopes: [balance]'), key('b'))],
    [
      'gives its key to another merchant',
      `merchants: [{ code: M-2, keys: [${key('a')}] }, { code: M-1, keys: [${key('b')}] }]`,
    ],
  ])('%s', async (_, changed) => {
    for (const pepper of [undefined, PEPPER]) {
      const { session, reload } = await open(
        fileOf(key('a', 'scopes: [balance, undeclared]'), key('b')),
        pepper,
      );
      const [first, second, other] = [session('sk_a'), session('sk_a'), session('sk_b')];
      await reload(changed);
      expect([first, second, other].map(({ end }) => end.mock.calls.length)).toEqual([1, 1, 0]);
    }
  });
});

describe('a session stays when the key file', () => {
  test.each([
    ['is written again', fileOf(key('a', 'scopes: [balance]'))],
    ['gives its key a scope', fileOf(key('a', 'scopes: [undeclared, balance]'))],
    ['renames its key', fileOf('{ id: z, dangerouslyPlainSecret: sk_a, scopes: [balance] }')],
    ['is broken', 'merchants: none'],
  ])('%s', async (_, changed) => {
    const { session, reload } = await open(fileOf(key('a', 'scopes: [balance]')));
    const { end } = session('sk_a');
    await reload(changed);
    vi.advanceTimersByTime(10_000);
    expect(end).not.toHaveBeenCalled();
  });
});

describe('a session ends within a second after', () => {
  test.each(['revokedAt', 'expiresAt'])('%s, once', async (member) => {
    const { session } = await open(fileOf(key('a', `${member}: 2026-06-01T00:01:00Z`), key('b')));
    const [mine, other] = [session('sk_a'), session('sk_b')];
    vi.advanceTimersByTime(59_999);
    expect(mine.end).not.toHaveBeenCalled();
    vi.advanceTimersByTime(1001);
    expect(mine.end).toHaveBeenCalledTimes(1);
    vi.advanceTimersByTime(60_000);
    expect(mine.end).toHaveBeenCalledTimes(1);
    expect(other.end).not.toHaveBeenCalled();
  });
});

test('a session that was removed is not ended, and there is one timer while others are open', async () => {
  const { session, reload } = await open(fileOf(key('a'), key('b')));
  const ofTheKeyFile = vi.getTimerCount();
  expect(ofTheKeyFile).toBe(1);
  const ofSessions = () => vi.getTimerCount() - ofTheKeyFile;
  const [first, second] = [session('sk_a'), session('sk_b')];
  expect(ofSessions()).toBe(1);
  first.remove();
  first.remove();
  expect(ofSessions()).toBe(1);
  await reload(fileOf(key('c')));
  expect(first.end).not.toHaveBeenCalled();
  expect(second.end).toHaveBeenCalledTimes(1);
  expect(ofSessions()).toBe(0);
  session('sk_c');
  expect(ofSessions()).toBe(1);
});

test('an authentication does not contain the secret key', async () => {
  const { session } = await open(fileOf(key('a')));
  expect(JSON.stringify(session('sk_a').authentication)).not.toContain('sk_a');
});
