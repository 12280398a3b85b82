import type { Scope } from '../kernel/brands.ts';

const FIRST_LOOK_MS = 25;
const LONGEST_LOOK_MS = 250;

/** Those who wait on one scope, oldest first. */
interface Room {
  waiters: Set<() => void>;
  lookMs: number;
  timer?: NodeJS.Timeout;
}

/**
 * Duplicates that wait for the first one's result.
 *
 * An execution in this process wakes all of them when it ends. For one in another process somebody has to look:
 * each tick wakes just the oldest waiter of a scope, at growing intervals, so that a thousand duplicates cost
 * the store what one costs.
 */
export class WaitingRoom {
  readonly #rooms = new Map<Scope, Room>();
  readonly #max: number;
  #count = 0;

  constructor(maxWaiters: number) {
    this.#max = maxWaiters;
  }

  /** Waiters at this moment. */
  get count(): number {
    return this.#count;
  }

  /** Resolves when it is worth looking again, after `ms` or when the merchant leaves. False: the room is full. */
  async wait(scope: Scope, ms: number, gone?: AbortSignal): Promise<boolean> {
    if (this.#count >= this.#max) return false;
    const room = this.#enter(scope);
    this.#count++;
    let wake: () => void = () => {};
    const woken = new Promise<void>((resolve) => {
      wake = resolve;
    });
    const timer = setTimeout(wake, ms);
    gone?.addEventListener('abort', wake);
    room.waiters.add(wake);
    await woken;
    clearTimeout(timer);
    gone?.removeEventListener('abort', wake);
    room.waiters.delete(wake);
    this.#count--;
    return true;
  }

  /** The execution on a scope has ended here, or was seen to have ended: everybody looks. */
  wakeAll(scope: Scope): void {
    const room = this.#rooms.get(scope);
    if (!room) return;
    this.#rooms.delete(scope);
    clearTimeout(room.timer);
    for (const wake of room.waiters) wake();
  }

  /** Nobody shall wait any more. */
  wakeEverybody(): void {
    for (const scope of this.#rooms.keys()) this.wakeAll(scope);
  }

  #enter(scope: Scope): Room {
    let room = this.#rooms.get(scope);
    if (!room) {
      room = { waiters: new Set(), lookMs: FIRST_LOOK_MS };
      this.#rooms.set(scope, room);
      this.#schedule(scope, room);
    }
    return room;
  }

  #schedule(scope: Scope, room: Room): void {
    room.timer = setTimeout(() => {
      const [oldest] = room.waiters;
      // Nobody came back since the last tick: the next one who comes opens a new room.
      if (!oldest) {
        this.#rooms.delete(scope);
        return;
      }
      oldest();
      room.lookMs = Math.min(room.lookMs * 1.5, LONGEST_LOOK_MS);
      this.#schedule(scope, room);
    }, room.lookMs);
  }
}
