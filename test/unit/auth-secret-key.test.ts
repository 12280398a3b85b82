import { describe, expect, it } from 'vitest';
import { Authenticator } from '../../src/keys/authenticate.ts';
import { isMistyped, newSecretKey } from '../../src/keys/secret-key.ts';
import { systemClock } from '../../src/lib/clock.ts';

describe('a new secret key', () => {
  it('names its mode, is long, and is another one each time', () => {
    for (const mode of ['live', 'test'] as const) {
      const keys = Array.from({ length: 100 }, () => newSecretKey(mode));
      expect(new Set(keys).size).toBe(100);
      for (const key of keys) {
        expect(key).toMatch(new RegExp(`^og_${mode}_[0-9A-Za-z]{32}_[0-9A-Za-z]{6}$`));
        expect(isMistyped(key)).toBe(false);
      }
    }
  });

  it('is mistyped if one character is another one, is missing, or is doubled', () => {
    const key = newSecretKey('live');
    for (let i = 'og_live_'.length; i < key.length; i++) {
      const other = key[i] === 'x' ? 'y' : 'x';
      expect(isMistyped(key.slice(0, i) + other + key.slice(i + 1)), `${i} changed`).toBe(true);
      expect(isMistyped(key.slice(0, i) + key.slice(i + 1)), `${i} missing`).toBe(true);
      expect(isMistyped(key.slice(0, i + 1) + key.slice(i)), `${i} doubled`).toBe(true);
    }
    for (const ofOthers of ['sk_live_abcdefghijklmnop', 'og_', 'og_live', 'OG_LIVE_x', ''])
      expect(isMistyped(ofOthers), ofOthers).toBe(false);
  });
});

describe('a mistyped secret key', () => {
  it('is refused like an unknown one, without a look-up', () => {
    const lookedUp: string[] = [];
    const keys = { find: (secret: string) => void lookedUp.push(secret) };
    const authenticator = new Authenticator(keys, { realm: 'test' }, systemClock);
    const ask = (secret: string) => authenticator.authenticate(['Authorization', `Bearer ${secret}`]);
    const [right, wrong] = [newSecretKey('live'), `${newSecretKey('live').slice(0, -1)}-`];
    expect(ask(wrong)).toEqual(ask(right));
    expect(lookedUp).toEqual([right]);
  });
});
