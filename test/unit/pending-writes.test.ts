import { setTimeout as sleep, setImmediate as turn } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { PendingWrites } from '../../src/idempotency/pending-writes.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { StoreUnavailable } from '../../src/store/contract.ts';
import { until } from '../support/until.ts';

const HOUR_MS = 3_600_000;

/** A store that freezes: a command has no answer for `timeoutMs`, and then fails. */
class FrozenStore {
  frozen = true;
  attempts = 0;
  readonly #timeoutMs: number;
  constructor(timeoutMs: number) {
    this.#timeoutMs = timeoutMs;
  }
  write = async (): Promise<'ok'> => {
    this.attempts++;
    if (!this.frozen) return 'ok';
    await sleep(this.#timeoutMs);
    throw new StoreUnavailable('frozen');
  };
}

describe.concurrent('pending writes', () => {
  it('are repeated until the store answers, and have its answer', async () => {
    const [pending, store] = [new PendingWrites(systemClock), new FrozenStore(10)];
    const answer = pending.add(store.write, HOUR_MS);
    expect(pending.count).toBe(1);
    await until(() => store.attempts > 2);
    store.frozen = false;
    expect([await answer, pending.count]).toEqual(['ok', 0]);
  });

  it('are given up when their time is over', async () => {
    const [pending, store] = [new PendingWrites(systemClock), new FrozenStore(10)];
    const startedMs = performance.now();
    expect(await pending.add(store.write, 300)).toBeUndefined();
    expect(performance.now() - startedMs).toBeGreaterThanOrEqual(299);
    expect(pending.count).toBe(0);
  });

  it('ask a frozen store a few times a second, five hundred of them, and are answered soon after it is back', async () => {
    const [pending, store] = [new PendingWrites(systemClock), new FrozenStore(500)];
    const answers = Array.from({ length: 500 }, () => pending.add(store.write, HOUR_MS));
    const startedMs = performance.now();
    await until(() => performance.now() - startedMs > 3000);
    // Sixteen at a time; a pause and half a second without an answer between two attempts.
    expect(store.attempts).toBeGreaterThan(16);
    expect(store.attempts).toBeLessThanOrEqual(80);
    store.frozen = false;
    const backMs = performance.now();
    expect(new Set(await Promise.all(answers))).toEqual(new Set(['ok']));
    expect(performance.now() - backMs).toBeLessThan(4000);
    expect(pending.count).toBe(0);
  });

  it('of which one is never answered do not hold up the others for long', async () => {
    const pending = new PendingWrites(systemClock);
    const broken = Array.from({ length: 3 }, () =>
      pending.add(() => Promise.reject(new StoreUnavailable('this node is away')), HOUR_MS),
    );
    await sleep(500);
    const startedMs = performance.now();
    expect(await pending.add(async () => 'ok', HOUR_MS)).toBe('ok');
    expect(performance.now() - startedMs).toBeLessThan(3000);
    await pending.close(0);
    expect(await Promise.all(broken)).toEqual([undefined, undefined, undefined]);
  });
});

describe.concurrent('closing', () => {
  it('waits for the write that is under way, and for no later one', async () => {
    const pending = new PendingWrites(systemClock);
    const [first, second] = [Promise.withResolvers<string>(), Promise.withResolvers<string>()];
    let begun = 0;
    const writing = (answer: Promise<string>) => () => {
      begun++;
      return answer;
    };
    const answered = pending.add(writing(first.promise), HOUR_MS);
    await until(() => begun === 1);
    let closed = false;
    const closing = pending.close(0).then(() => {
      closed = true;
    });
    await turn();
    expect(closed).toBe(false);
    first.resolve('ok');
    await closing;
    expect([await answered, pending.count]).toEqual(['ok', 0]);
    const later = pending.add(writing(second.promise), HOUR_MS);
    await until(() => begun === 2);
    expect(pending.count).toBe(1);
    second.resolve('ok');
    expect([await later, pending.count]).toEqual(['ok', 0]);
  });

  it('ends as soon as everything is answered', async () => {
    const [pending, store] = [new PendingWrites(systemClock), new FrozenStore(10)];
    const answer = pending.add(store.write, HOUR_MS);
    const closing = pending.close(20_000);
    store.frozen = false;
    await closing;
    expect(await answer).toBe('ok');
  });

  it('tries each write once more, all of them within one time limit of the store', async () => {
    const [pending, store] = [new PendingWrites(systemClock), new FrozenStore(300)];
    const answers = Array.from({ length: 500 }, () => pending.add(store.write, HOUR_MS));
    await until(() => store.attempts > 0);
    const before = store.attempts;
    const startedMs = performance.now();
    await pending.close(0);
    // What is under way, and one last attempt of all.
    expect(performance.now() - startedMs).toBeLessThan(2000);
    expect(new Set(await Promise.all(answers))).toEqual(new Set([undefined]));
    expect(store.attempts).toBeGreaterThanOrEqual(before + 500 - 16);
  });
});
