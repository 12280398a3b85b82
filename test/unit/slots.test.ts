import { describe, expect, it } from 'vitest';
import { type SlotOptions, Slots } from '../../src/backend/slots.ts';
import { type Clock, systemClock } from '../../src/lib/clock.ts';
import { movableClock } from '../support/movable-clock.ts';

const newSlots = (options: Partial<SlotOptions> = {}, clock: Clock = systemClock) =>
  new Slots({ maxConnections: 1, maxQueued: 2, queueTimeoutMs: 10_000, ...options }, clock);

function takenFrom(slots: Slots) {
  const slot = slots.tryTake();
  if (!slot) throw new Error('no slot is free');
  return slot;
}

describe('slots', () => {
  it('are as many as maxConnections', () => {
    const slots = newSlots({ maxConnections: 3 });
    const taken = [takenFrom(slots), takenFrom(slots), takenFrom(slots)];
    expect([slots.tryTake(), slots.inUse]).toEqual([undefined, 3]);
    taken[1]?.release();
    expect(slots.inUse).toBe(2);
    takenFrom(slots);
    expect(slots.tryTake()).toBeUndefined();
  });

  it('are free once, even if they are released twice', () => {
    const slots = newSlots();
    const slot = takenFrom(slots);
    slot.release();
    slot.release();
    takenFrom(slots);
    expect([slots.tryTake(), slots.inUse]).toEqual([undefined, 1]);
    // A second release of the old slot must not release the new one.
    slot.release();
    expect([slots.tryTake(), slots.inUse]).toEqual([undefined, 1]);
  });

  it('know how many of them have been in use for five seconds, those that a queued request got too', async () => {
    const clock = movableClock();
    const slots = newSlots({ maxConnections: 2 }, clock);
    const readLater = () => {
      clock.pass(5000);
      return slots.heldLong();
    };
    const [first, second] = [takenFrom(slots), takenFrom(slots)];
    const queued = slots.queue();
    // However often it is read meanwhile.
    expect([slots.heldLong(), readLater(), slots.heldLong(), readLater(), slots.heldLong()]).toEqual([
      ...[0, 0, 0, 2, 2],
    ]);
    first.release();
    expect(slots.heldLong()).toBe(1);
    second.release();
    second.release();
    const passedOn = await queued?.slot;
    expect([slots.heldLong(), readLater(), readLater()]).toEqual([0, 0, 1]);
    passedOn?.release();
    expect([slots.heldLong(), readLater(), readLater()]).toEqual([0, 0, 0]);
  });

  it('go to queued requests in their order, and before new requests', async () => {
    const slots = newSlots();
    const first = takenFrom(slots);
    const [second, third] = [slots.queue(), slots.queue()];
    expect([slots.queued, slots.queue()]).toEqual([2, undefined]);
    first.release();
    expect([slots.tryTake(), slots.queued]).toEqual([undefined, 1]);
    (await second?.slot)?.release();
    (await third?.slot)?.release();
    expect([slots.inUse, slots.queued]).toEqual([0, 0]);
  });

  it('skip a queued request that gave up, and are released by one that gives up with a slot', async () => {
    const slots = newSlots({ maxQueued: 3 });
    const first = takenFrom(slots);
    const [early, late, last] = [slots.queue(), slots.queue(), slots.queue()];
    early?.leave();
    expect(slots.queued).toBe(2);
    first.release();
    late?.leave();
    (await last?.slot)?.release();
    expect([slots.inUse, slots.queued]).toEqual([0, 0]);
  });

  it('are not waited for beyond queueTimeoutMs, after the merchant has disconnected, or if the queue is full', async () => {
    const slots = newSlots({ queueTimeoutMs: 50, maxQueued: 1 });
    const held = takenFrom(slots);
    expect(await slots.take()).toBeUndefined();
    expect(slots.queued).toBe(0);
    const leaving = new AbortController();
    const left = slots.take(leaving.signal);
    expect(await slots.take()).toBeUndefined();
    leaving.abort();
    expect(await left).toBeUndefined();
    expect(slots.queued).toBe(0);
    const waiting = slots.take();
    held.release();
    (await waiting)?.release();
    expect([slots.inUse, slots.queued]).toEqual([0, 0]);
    expect(await waiting).toBeDefined();
  });
});
