import { getEventListeners } from 'node:events';
import { Readable } from 'node:stream';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import type { Result } from '../../src/idempotency/call.ts';
import { Duplicates, type Lead } from '../../src/idempotency/duplicates.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { complete, newCall, notSent, responseOf, retryOf } from '../support/engine.ts';
import { newRequest, otherOf } from '../support/requests.ts';

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

const MINUTE_MS = 60_000;
const stored: Extract<Result, { kind: 'executed' }> = {
  kind: 'executed',
  exchange: complete(),
  decision: 'complete',
  stored: true,
};
const released: Result = { kind: 'executed', exchange: notSent, decision: 'release', stored: false };
const replayed: Result = { kind: 'replayed', response: responseOf(), requestId: 'the first' };

function leadOf(duplicates: Duplicates, call = newCall()) {
  const lead = duplicates.tryLead(call);
  if (!lead) throw new Error('another request leads');
  return { call, lead };
}

/** Follows, and notes its name and what it got. */
function follower(duplicates: Duplicates, notes: string[], call = newCall(), name = 'a', ms = MINUTE_MS) {
  return duplicates.follow(call, ms).then((got) => {
    notes.push(`${name}: ${'kind' in got ? got.kind : 'leads'}`);
    return got;
  });
}

describe('duplicates', () => {
  it('start one at a time after a release, in the order in which they came', async () => {
    const [duplicates, notes] = [new Duplicates(systemClock), [] as string[]];
    const { call, lead } = leadOf(duplicates);
    const following = ['a', 'b', 'c'].map((name) => follower(duplicates, notes, call, name));
    duplicates.handOver(call, lead, released);
    const next = (await following[0]) as Lead;
    expect(notes).toEqual(['a: leads']);
    duplicates.handOver(call, next, released);
    const third = (await following[1]) as Lead;
    duplicates.handOver(call, third, stored);
    await following[2];
    expect(notes).toEqual(['a: leads', 'b: leads', 'c: replayed']);
    expect(duplicates.tryLead(call)).toBeDefined();
  });

  it.each<[string, Result | undefined]>([
    ['was not stored', { ...stored, stored: false } as Result],
    ['is in flight elsewhere', { kind: 'in_flight' }],
    ['got no slot', { kind: 'overloaded' }],
    ['broke', undefined],
  ])('ask for themselves if the first one %s', async (_, result) => {
    const [duplicates, notes] = [new Duplicates(systemClock), [] as string[]];
    const { call, lead } = leadOf(duplicates);
    const following = follower(duplicates, notes, call);
    duplicates.handOver(call, lead, result);
    await following;
    expect(notes).toEqual(['a: leads']);
  });

  it.each<[string, Result, Result?]>([
    ['a doubt', { kind: 'in_doubt', sinceMs: 7, requestId: 'the first' }],
    ['that the store does not answer', { kind: 'store_unavailable', cause: 'away' }],
    ['that the engine is closing', { kind: 'closing' }],
    ['a replay', replayed],
    ['a stored response', stored, replayed],
    [
      'a response that was too large to store',
      { ...stored, exchange: { kind: 'oversize', status: 201, headers: [], body: new Readable() } },
      { kind: 'tombstone', requestId: 'the first' },
    ],
  ])('share %s', async (_, result, shared = result) => {
    const duplicates = new Duplicates(systemClock);
    const { call, lead } = leadOf(duplicates, newCall(complete(), { requestId: 'the first' }));
    const following = [duplicates.follow(call, MINUTE_MS), duplicates.follow(call, 0)];
    const elsewhere = leadOf(duplicates);
    void duplicates.follow(elsewhere.call, MINUTE_MS);
    expect(duplicates.following).toBe(3);
    lead.asks();
    duplicates.handOver(call, lead, result);
    expect(await Promise.all(following)).toEqual([shared, shared]);
    expect(duplicates.following).toBe(1);
  });

  // The key may have been completed after the first one asked, and another merchant may have got that result already.
  it('that came after the first one had asked ask for themselves, if it found the key in doubt', async () => {
    const [duplicates, notes] = [new Duplicates(systemClock), [] as string[]];
    const { call, lead } = leadOf(duplicates);
    const following = [follower(duplicates, notes, call)];
    lead.asks();
    for (const name of ['b', 'c']) following.push(follower(duplicates, notes, call, name));
    duplicates.handOver(call, lead, { kind: 'in_doubt', sinceMs: 7, requestId: 'the first' });
    await Promise.all(following.slice(0, 2));
    expect(notes).toEqual(['a: in_doubt', 'b: leads']);
  });

  it('do not follow another request under their key', () => {
    const duplicates = new Duplicates(systemClock);
    const { call, lead } = leadOf(duplicates);
    const { fingerprint } = otherOf(newRequest());
    const other = leadOf(duplicates, { ...retryOf(call), fingerprint });
    expect(other.lead).not.toBe(lead);
    // When the other request ends, the first one still leads.
    duplicates.handOver(call, other.lead, { kind: 'mismatch' });
    expect(duplicates.tryLead(retryOf(call))).toBeUndefined();
  });

  it('each wait for their own time limit, and are then answered in_flight', async () => {
    const [duplicates, notes] = [new Duplicates(systemClock), [] as string[]];
    const { call, lead } = leadOf(duplicates);
    lead.setInFlight();
    for (const [name, ms] of [
      ['long', 30],
      ['short', 20],
      ['none', 0],
    ] as const) {
      void follower(duplicates, notes, call, name, ms);
    }
    await vi.advanceTimersByTimeAsync(0);
    expect(notes).toEqual(['none: in_flight']);
    await vi.advanceTimersByTimeAsync(19);
    expect(notes).toHaveLength(1);
    await vi.advanceTimersByTimeAsync(1);
    await vi.advanceTimersByTimeAsync(10);
    expect(notes).toEqual(['none: in_flight', 'short: in_flight', 'long: in_flight']);
    expect([duplicates.following, vi.getTimerCount()]).toEqual([0, 0]);
  });

  it('get an immediate result, and are not answered in_flight before the key is known to be in flight', async () => {
    const [duplicates, notes] = [new Duplicates(systemClock), [] as string[]];
    const { call, lead } = leadOf(duplicates);
    const following = follower(duplicates, notes, call, 'a', 0);
    await vi.advanceTimersByTimeAsync(1000);
    expect(notes).toEqual([]);
    duplicates.handOver(call, lead, replayed);
    await following;
    expect(notes).toEqual(['a: replayed']);

    const second = leadOf(duplicates);
    const overdue = follower(duplicates, notes, second.call, 'b', 10);
    await vi.advanceTimersByTimeAsync(11);
    second.lead.setInFlight();
    await overdue;
    expect(notes).toEqual(['a: replayed', 'b: in_flight']);
  });

  it('stop waiting when their merchants leave, and leak no timer and no listener', async () => {
    const duplicates = new Duplicates(systemClock);
    const { call, lead } = leadOf(duplicates);
    const [leaving, staying] = [new AbortController(), new AbortController()];
    const left = duplicates.follow(retryOf(call, { gone: leaving.signal }), MINUTE_MS);
    const stayed = duplicates.follow(retryOf(call, { gone: staying.signal }), MINUTE_MS);
    leaving.abort();
    expect(await left).toEqual({ kind: 'in_flight' });
    const gone = AbortSignal.abort();
    expect(await duplicates.follow(retryOf(call, { gone }), MINUTE_MS)).toEqual({ kind: 'in_flight' });
    expect(duplicates.following).toBe(1);
    duplicates.handOver(call, lead, stored);
    expect(await stayed).toEqual({ ...replayed, requestId: call.requestId });
    for (const { signal } of [leaving, staying]) expect(getEventListeners(signal, 'abort')).toEqual([]);
    expect([duplicates.following, vi.getTimerCount()]).toEqual([0, 0]);
  });
});
