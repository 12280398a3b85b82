import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { PendingWrites } from '../../src/idempotency/pending-writes.ts';
import { pause, systemClock } from '../../src/lib/clock.ts';
import { StoreUnavailable } from '../../src/store/types.ts';

const HOUR_MS = 3_600_000;

beforeEach(() => void vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] }));
afterEach(() => void vi.useRealTimers());
const pass = (ms: number) => vi.advanceTimersByTimeAsync(ms);

/** Pending writes of a store that freezes: a command has no answer for `timeoutMs`, and then fails. */
function open(timeoutMs: number) {
  const store = { isFrozen: true, attempts: 0 };
  const write = async () => {
    store.attempts++;
    if (!store.isFrozen) return 'ok';
    await pause(systemClock, timeoutMs);
    throw new StoreUnavailable('frozen');
  };
  const pending = new PendingWrites(systemClock);
  const add = (count: number, forMs = HOUR_MS) =>
    Promise.all(Array.from({ length: count }, () => pending.add(write, forMs))).then((all) => new Set(all));
  return { store, pending, add };
}

describe('pending writes', () => {
  it('are repeated until the store answers, and have its answer', async () => {
    const { store, pending, add } = open(10);
    const answer = add(1);
    await pass(1000);
    expect(store.attempts).toBeGreaterThan(2);
    expect(pending.count).toBe(1);
    store.isFrozen = false;
    await pass(500);
    expect([await answer, pending.count]).toEqual([new Set(['ok']), 0]);
  });

  it('are given up when their time is over', async () => {
    const { pending, add } = open(10);
    const answer = add(1, 300);
    await pass(299);
    expect(pending.count).toBe(1);
    await pass(500);
    expect([await answer, pending.count]).toEqual([new Set([undefined]), 0]);
  });

  it('ask a frozen store a few times a second, five hundred of them, and are answered soon after it is back', async () => {
    const { store, pending, add } = open(500);
    const answers = add(500);
    await pass(3000);
    // Sixteen at a time; a pause and half a second without an answer between two attempts.
    expect(store.attempts).toBeGreaterThan(16);
    expect(store.attempts).toBeLessThanOrEqual(80);
    store.isFrozen = false;
    await pass(4000);
    expect([await answers, pending.count]).toEqual([new Set(['ok']), 0]);
  });

  it('are repeated with pauses by a store that becomes full while it takes them', async () => {
    const { pending } = open(0);
    let attempts = 0;
    const write = async () => {
      if (++attempts > 16) throw new StoreUnavailable('full');
    };
    for (let number = 0; number < 17; number++) void pending.add(write, HOUR_MS);
    await pass(3000);
    expect(pending.count).toBe(1);
    expect(attempts).toBeLessThan(16 + 12);
  });

  it('of which one is never answered do not hold up the others for long', async () => {
    const { pending, add } = open(0);
    const broken = add(3);
    await pass(500);
    const answer = pending.add(async () => 'ok', HOUR_MS);
    await pass(3000);
    expect([await answer, pending.count]).toEqual(['ok', 3]);
    const closing = pending.close(0);
    await pass(1);
    await closing;
    expect(await broken).toEqual(new Set([undefined]));
  });
});

describe('closing', () => {
  it('waits for the write that is under way, and for no later one', async () => {
    const { pending } = open(0);
    const [first, second] = [Promise.withResolvers<string>(), Promise.withResolvers<string>()];
    const answered = pending.add(() => first.promise, HOUR_MS);
    await pass(50);
    let closed = false;
    const closing = pending.close(0).then(() => {
      closed = true;
    });
    await pass(10_000);
    expect(closed).toBe(false);
    first.resolve('ok');
    await closing;
    expect([await answered, pending.count]).toEqual(['ok', 0]);
    const later = pending.add(() => second.promise, HOUR_MS);
    await pass(0);
    expect(pending.count).toBe(1);
    second.resolve('ok');
    expect([await later, pending.count]).toEqual(['ok', 0]);
  });

  it('ends as soon as everything is answered', async () => {
    const { store, pending, add } = open(10);
    const answer = add(1);
    const closing = pending.close(20_000);
    store.isFrozen = false;
    await pass(500);
    await closing;
    expect(await answer).toEqual(new Set(['ok']));
  });

  it('tries each write once more, all of them within one time limit of the store', async () => {
    const { store, pending, add } = open(300);
    const answers = add(500);
    await pass(50);
    expect(store.attempts).toBe(16);
    const closing = pending.close(0);
    // What is under way, and one last attempt of all others.
    await pass(2 * 300 + 1);
    await closing;
    expect(await answers).toEqual(new Set([undefined]));
    expect(store.attempts).toBe(500);
  });
});
