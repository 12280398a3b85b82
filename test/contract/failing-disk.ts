import { expect } from 'vitest';
import type { Execution } from '../../src/store/types.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { expectIntact, openSqlite, type RemoteStore } from '../support/sqlite-files.ts';
import { until } from '../support/until.ts';
import { replayOf } from './states.ts';

/** Starts and completes keys until a write is refused. Returns the completed ones and the refusal. */
export async function fill(store: RemoteStore) {
  const completed: Execution[] = [];
  for (;;) {
    const request = newRequest();
    for (const call of ['start', 'complete'] as const) {
      const reply = await store.ask(call, request);
      if ('refused' in reply) return { completed, request, call, ...reply.refused };
    }
    completed.push(request);
  }
}

export async function expectReplays(store: RemoteStore, completed: Execution[]): Promise<void> {
  for (const request of completed.slice(-3))
    expect(await store.answer('start', duplicateOf(request))).toBe('completed');
}

/** While no write succeeds, replays are answered, starts are refused at once, and the health check says why. */
export async function expectRefusing(store: RemoteStore, completed: Execution[]): Promise<void> {
  await expectReplays(store, completed);
  expect(await store.ask('start', newRequest())).toMatchObject({ refused: { maybeWritten: false } });
  expect(await store.answer('refusing')).toEqual(expect.any(String));
  expect(await store.answer('health')).toMatchObject({ ok: false });
}

/** The store finds out that writes succeed again, without any request. */
export async function expectResumed(store: RemoteStore): Promise<void> {
  await until(async () => (await store.answer('refusing')) === null);
  const request = newRequest();
  expect(await store.answer('start', request)).toBe('started');
  expect(await store.answer('complete', request)).toBe('ok');
  expect(await store.answer('health')).toEqual({ ok: true, detail: 'sqlite', warnings: [] });
}

export async function expectKept(path: string, completed: Execution[]): Promise<void> {
  expectIntact(path);
  const store = await openSqlite(path);
  for (const request of completed)
    expect(await store.start(duplicateOf(request))).toEqual(replayOf(paid(request.key), request));
}
