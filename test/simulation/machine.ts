import type { Token } from '../../src/lib/brands.ts';
import type { Clock } from '../../src/lib/clock.ts';
import type { Random } from '../../src/lib/random.ts';
import { type Dice, diceOf } from './dice.ts';
import type { Timeline } from './timeline.ts';

/** What the clocks do while the machine is frozen: a stopped process, a suspended machine, a virtual machine that was frozen whole. */
export type Freeze = 'both run' | 'wall runs' | 'none runs';

export interface Clocks {
  /** How far the wall clock is ahead of true time. */
  wallAheadMs: number;
  /** How fast both run; 1 is right. */
  rate: number;
}

const TIMER_ERROR_MS = 0.001;

/** A process of a gateway, from its start to its death. */
export class Process {
  readonly machine: Machine;
  readonly name: string;
  readonly clock: Clock;
  readonly random: Random;
  isDead = false;
  /** The process was frozen or killed, so that what it had begun may have been left as it was. */
  wasDisturbed = false;

  constructor(machine: Machine, name: string, timeline: Timeline, seed: number) {
    this.machine = machine;
    this.name = name;
    this.random = seededRandom(diceOf(seed, `tokens of ${name}`));
    this.clock = {
      wallMs: () => Math.trunc(machine.wallMs),
      monotonicMs: () => machine.monotonicMs,
      after: (ms, act) => {
        const dueMs = machine.monotonicMs + Math.max(ms, 0);
        let cancel = () => {};
        const wait = (leftMs: number) => {
          cancel = timeline.after(leftMs / machine.rate, fire);
        };
        const fire = () => machine.run(this, look, true);
        const look = () => {
          if (!isSet) return;
          // The clock may have stood still meanwhile.
          const leftMs = dueMs - machine.monotonicMs;
          if (leftMs > TIMER_ERROR_MS) wait(leftMs);
          else act();
        };
        let isSet = true;
        wait(Math.max(ms, 0));
        return () => {
          isSet = false;
          cancel();
        };
      },
    };
  }
}

/** Where processes run, one after the other: its clocks, and what happens to it. */
export class Machine {
  readonly rate: number;
  readonly #timeline: Timeline;
  readonly #dice: Dice;
  readonly #beganMs: number;
  #wallAheadMs: number;
  #monotonicAheadMs: number;
  #frozen = 0;
  /** For how long both clocks have stood still. */
  stoodStillMs = 0;
  #stood: { wall: boolean; monotonic: boolean; sinceMs: number } | undefined;
  #waiting: { process: Process; act: () => void; isTimer: boolean }[] = [];

  constructor(timeline: Timeline, { wallAheadMs, rate }: Clocks, dice: Dice) {
    this.#timeline = timeline;
    this.#beganMs = timeline.nowMs;
    this.#wallAheadMs = timeline.nowMs + wallAheadMs;
    this.#monotonicAheadMs = dice.between(0, 1e6);
    this.rate = rate;
    this.#dice = dice;
  }

  get wallMs(): number {
    return this.#ranMs + this.#wallAheadMs - this.#stoodMs('wall');
  }

  get monotonicMs(): number {
    return this.#ranMs + this.#monotonicAheadMs - this.#stoodMs('monotonic');
  }

  get isFrozen(): boolean {
    return this.#frozen > 0;
  }

  /** Whether the clocks stand still, so that no fence here can notice. */
  get hasStoppedClocks(): boolean {
    return this.#stood?.wall === true && this.#stood.monotonic;
  }

  stepWall(ms: number): void {
    this.#wallAheadMs += ms;
  }

  /** Runs `act` in the process unless it is dead, and after a freeze if the machine is frozen. */
  run(process: Process, act: () => void, isTimer = false): void {
    if (process.isDead) return;
    if (this.#frozen > 0) this.#waiting.push({ process, act, isTimer });
    else act();
  }

  freeze(ms: number, clocks: Freeze): void {
    this.#frozen++;
    if (clocks !== 'both run' && !this.#stood)
      this.#stood = { wall: clocks === 'none runs', monotonic: true, sinceMs: this.#timeline.nowMs };
    this.#timeline.after(ms, () => this.#thaw());
  }

  #thaw(): void {
    if (--this.#frozen > 0) return;
    if (this.#stood) {
      if (this.#stood.wall) this.stoodStillMs += this.#timeline.nowMs - this.#stood.sinceMs;
      this.#wallAheadMs -= this.#stoodMs('wall');
      this.#monotonicAheadMs -= this.#stoodMs('monotonic');
      this.#stood = undefined;
    }
    const waiting = this.#waiting;
    this.#waiting = [];
    // Node runs timers before it reads sockets, unless it was stopped between the two.
    const timersFirst = this.#dice.chance(0.7);
    if (timersFirst) waiting.sort((a, b) => Number(b.isTimer) - Number(a.isTimer));
    for (const { process, act, isTimer } of waiting)
      this.#timeline.after(0, () => this.run(process, act, isTimer));
  }

  /** How far both have run, if they have not stood still. */
  get #ranMs(): number {
    return (this.#timeline.nowMs - this.#beganMs) * this.rate;
  }

  #stoodMs(which: 'wall' | 'monotonic'): number {
    return this.#stood?.[which] ? (this.#timeline.nowMs - this.#stood.sinceMs) * this.rate : 0;
  }
}

function seededRandom(dice: Dice): Random {
  return {
    token: () => {
      const token = Buffer.allocUnsafe(16);
      for (let at = 0; at < 16; at += 4) token.writeUInt32LE(Math.floor(dice.next() * 2 ** 32), at);
      return token as Token;
    },
    fraction: () => dice.next(),
  };
}
