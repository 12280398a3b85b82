import { Copy, CopyRefused } from '../../src/ledger/store-copy.ts';
import { diceOf } from './dice.ts';
import { Machine, Process } from './machine.ts';
import type { CopyPlan } from './plan.ts';
import { type Network, NetworkRegister, type StoreServers } from './store.ts';
import type { Timeline } from './timeline.ts';

export interface CopierParts {
  timeline: Timeline;
  seed: number;
  from: StoreServers;
  to: StoreServers;
  step(process: Process, where: string): void;
  say(what: string): void;
  started(process: Process): void;
  /** Gateways may be started on the destination. */
  opened(): void;
  /** The copy was undone: gateways may start on the source again. */
  undone(): void;
}

/** An operator who copies all records to another store, and repeats failed runs until that store is open. */
export class Copier {
  readonly machine: Machine;
  isOpened = false;
  isUndone = false;
  readonly network: Network;
  readonly #plan: CopyPlan;
  readonly #parts: CopierParts;
  #runs = 0;
  /** Two runs at once can leave records in a destination that no run may use any more. Then the source is opened again. */
  #givesUp = false;

  constructor(plan: CopyPlan, parts: CopierParts) {
    this.#plan = plan;
    this.#parts = parts;
    this.network = { faults: plan.networkFaults, requestsLostUntilMs: 0, repliesLostUntilMs: 0 };
    const clocks = { wallAheadMs: 0, rate: 1 };
    this.machine = new Machine(parts.timeline, clocks, diceOf(parts.seed, 'machine of the copy'));
  }

  /** Whether gateways may be started on the destination too early. After an undo nobody does so, even if another run's progress is left there. */
  async hasBegun(): Promise<boolean> {
    const progress = await this.#parts.to.master.register.readCopyProgress();
    if (this.isUndone) return false;
    return progress?.state === 'receiving' || progress?.state === 'opened';
  }

  async run(): Promise<void> {
    const { timeline, seed, from, to, step, say, started } = this.#parts;
    const name = `copy ${this.#runs++}`;
    const process = new Process(this.machine, name, timeline, seed);
    const dice = diceOf(seed, name);
    started(process);
    say(`${name} starts`);
    const sideOf = (store: StoreServers) => {
      store.join(process);
      const stepped = (where: string) => step(process, where);
      return new NetworkRegister(process, store, this.network, timeline, dice, stepped);
    };
    const { clock, random } = process;
    try {
      const copy = new Copy({ from: sideOf(from), to: sideOf(to), clock, random });
      if (this.#givesUp) {
        await copy.undo();
        this.#undone();
      } else await copy.run();
    } catch (error) {
      if (process.isDead) return;
      say(`${name} ends: ${error}`);
      const refused = error instanceof CopyRefused ? error.message : '';
      this.#givesUp ||= refused.startsWith('the destination has');
      if (refused.startsWith('no copy has closed')) this.#undone();
    }
    // Another run has closed the source again meanwhile.
    const closed = await from.master.register.readCopyProgress();
    if (this.isUndone && closed?.state !== 'undone') this.isUndone = false;
    if (this.#isOver) return;
    // Its last answer may have been lost.
    const progress = await to.master.register.readCopyProgress();
    if (progress?.state !== 'opened') this.begin(this.#plan.againAfterMs);
    else {
      this.isOpened = true;
      this.#parts.opened();
    }
  }

  #undone(): void {
    if (!this.isUndone) this.#parts.undone();
    this.isUndone = true;
  }

  get #isOver(): boolean {
    return this.isOpened || this.isUndone;
  }

  begin(afterMs: number): void {
    this.#parts.timeline.after(afterMs, () => void (this.#isOver || this.run()));
  }
}
