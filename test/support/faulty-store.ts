import { setTimeout as sleep } from 'node:timers/promises';
import type { Store } from '../../src/ledger/ledger.ts';
import { StoreUnavailable } from '../../src/store/types.ts';

const WRITES = [
  ...(['start', 'restart', 'renew', 'complete', 'release', 'leaveInDoubt', 'takeBack', 'resolve'] as const),
];
/** Commands that can be made to fail. */
const COMMANDS = [...WRITES, 'peek', 'list', 'aliveForMs'] as const;

export type FaultyCommand = (typeof COMMANDS)[number];

interface Fault {
  /**
   * `before`: the command is not executed. `after`: it is executed, and its answer is lost. `held`: it is executed after `goOn`.
   * `late`: its answer takes `ms` longer.
   */
  when: 'before' | 'after' | 'held' | 'late';
  times: number;
  ms: number;
  goOn?: Promise<void>;
}

/** How the commands of a store fail. */
class Faults {
  /** How often each command was sent. */
  readonly asked = Object.fromEntries(COMMANDS.map((command) => [command, 0])) as Record<
    FaultyCommand,
    number
  >;
  readonly #faults = new Map<FaultyCommand, Fault>();

  /** The next `times` calls of `command` throw StoreUnavailable, before or after they are executed. */
  fail(command: FaultyCommand, when: 'before' | 'after', times = Number.POSITIVE_INFINITY): void {
    this.#faults.set(command, { when, times, ms: 0 });
  }

  /** Delays each answer to `command`. */
  delay(command: FaultyCommand, ms: number): void {
    this.#faults.set(command, { when: 'late', times: Number.POSITIVE_INFINITY, ms });
  }

  /** Holds each `command` back until the returned function is called. */
  hold(command: FaultyCommand): () => void {
    const { promise: goOn, resolve } = Promise.withResolvers<void>();
    this.#faults.set(command, { when: 'held', times: Number.POSITIVE_INFINITY, ms: 0, goOn });
    return resolve;
  }

  heal(): void {
    this.#faults.clear();
  }

  async through<T>(command: FaultyCommand, work: () => Promise<T>): Promise<T> {
    this.asked[command]++;
    const fault = this.#faults.get(command);
    if (!fault || fault.times <= 0) return await work();
    fault.times--;
    if (fault.when === 'held') await fault.goOn;
    if (fault.when === 'before') throw new StoreUnavailable(`${command} was not sent`);
    const answer = await work();
    if (fault.when === 'late') await sleep(fault.ms);
    if (fault.when === 'after') throw new StoreUnavailable(`the answer to ${command} was lost`);
    return answer;
  }
}

export type FaultyStore = Store & Faults;

/** A real store whose commands fail on demand. A test may put a command of its own in the place of one. */
export function faultyStore(store: Store): FaultyStore {
  const faults = new Faults();
  return new Proxy(faults as FaultyStore, {
    get(_, name) {
      const owner = name in faults ? faults : store;
      const member = Reflect.get(owner, name, owner);
      if (typeof member !== 'function') return member;
      const call = member.bind(owner);
      const command = COMMANDS.find((one) => one === name);
      if (owner === faults || !command) return call;
      return (...args: unknown[]) => faults.through(command, () => call(...args));
    },
  });
}
