import { getEventListeners } from 'node:events';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { scopeOf } from '../../src/idempotency/fingerprint.ts';
import { WaitingRoom } from '../../src/idempotency/waiting.ts';

const SCOPE = scopeOf('M-1', 'key');
const OTHER = scopeOf('M-1', 'other');

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

/** Enters, and notes its name when it is woken. */
function enter(room: WaitingRoom, woken: string[], name: string, scope = SCOPE, ms = 60_000): Promise<void> {
  return room.wait(scope, ms).then((entered) => void woken.push(entered ? name : `${name} turned away`));
}

describe('a waiting room', () => {
  it('wakes everybody of a scope, and nobody else', async () => {
    const [room, woken] = [new WaitingRoom(10), [] as string[]];
    const waiting = ['a', 'b', 'c'].map((name) => enter(room, woken, name));
    const other = enter(room, woken, 'other', OTHER);
    expect(room.count).toBe(4);
    room.wakeAll(SCOPE);
    await Promise.all(waiting);
    expect(woken).toEqual(['a', 'b', 'c']);
    expect(room.count).toBe(1);
    room.wakeAll(OTHER);
    await other;
    expect(room.count).toBe(0);
  });

  it('turns away those it has no place for, until somebody leaves', async () => {
    const [room, woken] = [new WaitingRoom(2), [] as string[]];
    const waiting = [enter(room, woken, 'a'), enter(room, woken, 'b', OTHER)];
    await enter(room, woken, 'c');
    expect(woken).toEqual(['c turned away']);
    expect(room.count).toBe(2);
    room.wakeAll(SCOPE);
    await waiting[0];
    const later = enter(room, woken, 'd');
    room.wakeAll(SCOPE);
    room.wakeAll(OTHER);
    await Promise.all([later, ...waiting]);
    expect(woken).toEqual(['c turned away', 'a', 'd', 'b']);
  });

  it('lets nobody wait where nobody may', async () => {
    expect(await new WaitingRoom(0).wait(SCOPE, 1000)).toBe(false);
  });

  it('ends each wait at its time', async () => {
    const [room, woken] = [new WaitingRoom(10), [] as string[]];
    // The first one is woken to look; those after it sleep on.
    const waiting = [
      enter(room, woken, 'looks'),
      enter(room, woken, 'short', SCOPE, 20),
      enter(room, woken, 'long', SCOPE, 30),
    ];
    await vi.advanceTimersByTimeAsync(19);
    expect(woken).toEqual([]);
    await vi.advanceTimersByTimeAsync(1);
    expect(woken).toEqual(['short']);
    await vi.advanceTimersByTimeAsync(10);
    expect(woken).toEqual(['short', 'looks', 'long']);
    await Promise.all(waiting);
    expect(room.count).toBe(0);
  });

  it('ends the wait of a merchant who leaves, and keeps nothing of it', async () => {
    const room = new WaitingRoom(10);
    const [leaving, staying] = [new AbortController(), new AbortController()];
    const left = room.wait(SCOPE, 60_000, leaving.signal);
    const stayed = room.wait(SCOPE, 60_000, staying.signal);
    leaving.abort();
    expect(await left).toBe(true);
    expect(room.count).toBe(1);
    room.wakeAll(SCOPE);
    expect(await stayed).toBe(true);
    for (const { signal } of [leaving, staying]) expect(getEventListeners(signal, 'abort')).toEqual([]);
    expect(room.count).toBe(0);
  });

  it('has just the oldest look each time', async () => {
    const [room, woken] = [new WaitingRoom(10), [] as string[]];
    const waiting = ['a', 'b', 'c'].map((name) => enter(room, woken, name));
    await vi.advanceTimersByTimeAsync(26);
    expect(woken).toEqual(['a']);
    await vi.advanceTimersByTimeAsync(40);
    expect(woken).toEqual(['a', 'b']);
    room.wakeAll(SCOPE);
    await Promise.all(waiting);
  });

  it('costs the store as little for a thousand as for one', async () => {
    const looksOf = async (crowd: number, ms: number) => {
      const room = new WaitingRoom(crowd);
      let looks = 0;
      let over = false;
      const stay = async () => {
        for (;;) {
          await room.wait(SCOPE, 60_000);
          if (over) return;
          looks++;
        }
      };
      const staying = Array.from({ length: crowd }, stay);
      await vi.advanceTimersByTimeAsync(ms);
      over = true;
      room.wakeAll(SCOPE);
      await Promise.all(staying);
      return looks;
    };
    const [alone, first] = [await looksOf(1, 10_000), await looksOf(1, 1000)];
    expect(await looksOf(1000, 10_000)).toBe(alone);
    // Soon at first, and then four times a second.
    expect(first).toBeGreaterThanOrEqual(6);
    expect(alone).toBeLessThanOrEqual(45);
    expect(alone).toBeGreaterThanOrEqual(35);
  });

  it('leaves no timer behind when the last one has gone', async () => {
    const room = new WaitingRoom(10);
    const waiting = room.wait(SCOPE, 60_000);
    await vi.advanceTimersByTimeAsync(100);
    await waiting;
    await vi.advanceTimersByTimeAsync(1000);
    expect(vi.getTimerCount()).toBe(0);
  });
});
