import { setImmediate as nextTurn } from 'node:timers/promises';
import { pino } from 'pino';
import { expect, onTestFinished, test, vi } from 'vitest';
import { requestLogger } from '../../src/telemetry/logger.ts';

/** Logs a request in each of these turns of the event loop, `apartMs` apart. Returns how many lines each write had. */
async function writesOf(turns: number, apartMs: number, bytes = 1): Promise<number[]> {
  vi.useFakeTimers({ toFake: ['Date'] });
  onTestFinished(() => void vi.useRealTimers());
  const writes: string[] = [];
  const log = requestLogger(pino({}, { write: (lines) => void writes.push(lines) }));
  for (let turn = 0; turn < turns; turn++) {
    log({ path: 'x'.repeat(bytes) });
    await nextTurn();
    vi.setSystemTime(Date.now() + apartMs);
  }
  await nextTurn();
  return writes.map((lines) => lines.trim().split('\n').length);
}

test('the lines of requests are written together when a turn of the event loop adds none', async () => {
  expect(await writesOf(20, 0)).toEqual([20]);
});

test('the lines of requests wait for further ones for 10 ms', async () => {
  expect(await writesOf(5, 4)).toEqual([4, 1]);
});

test('the lines of requests wait until there are 32 KiB of them', async () => {
  expect(await writesOf(5, 0, 10_000)).toEqual([4, 1]);
});
