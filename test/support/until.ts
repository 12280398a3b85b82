import { setTimeout as sleep } from 'node:timers/promises';

const LOOK_EVERY_MS = 10;

/** Repeats `look` until its result is truthy, and returns it; fails with the last result. */
export async function until<T>(look: () => T | Promise<T>, withinMs = 30_000): Promise<NonNullable<T>> {
  const endMs = performance.now() + withinMs;
  for (;;) {
    const seen = await look();
    if (seen) return seen as NonNullable<T>;
    if (performance.now() > endMs) throw new Error(`not so within ${withinMs} ms: ${look.toString()}`);
    await sleep(LOOK_EVERY_MS);
  }
}
