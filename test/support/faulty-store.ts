import { setTimeout as sleep } from 'node:timers/promises';
import type { Store } from '../../src/ledger/ledger.ts';
import { StoreUnavailable } from '../../src/store/contract.ts';

const WRITES = [
  ...(['start', 'restart', 'renew', 'complete', 'release', 'markInDoubt', 'takeBack', 'resolve'] as const),
];
/** Commands that can be made to fail. */
const COMMANDS = [...WRITES, 'peek', 'list', 'aliveForMs'] as const;

export type FaultyCommand = (typeof COMMANDS)[number];

interface Fault {
  /**
   * `before`: the command is not executed. `after`: it is executed, and its answer is lost. `held`: it is executed after `goOn`.
   * The others take `ms` longer.
   */
  when: 'before' | 'after' | 'held' | 'late' | 'answered late';
  times: number;
  ms: number;
  goOn?: Promise<void>;
}

/** A real store whose commands fail on demand. */
export class FaultyStore implements Store {
  /** How often each command was sent. */
  readonly asked = Object.fromEntries(COMMANDS.map((command) => [command, 0])) as Record<
    FaultyCommand,
    number
  >;
  readonly #store: Store;
  readonly #faults = new Map<FaultyCommand, Fault>();

  constructor(store: Store) {
    this.#store = store;
  }

  get refusing(): string | undefined {
    return this.#store.refusing;
  }

  get connection(): unknown {
    return this.#store.connection;
  }

  get usage(): Store['usage'] {
    return this.#store.usage;
  }

  /** The next `times` calls of `command` throw StoreUnavailable, before or after they are executed. */
  fail(command: FaultyCommand, when: 'before' | 'after', times = Number.POSITIVE_INFINITY): void {
    this.#faults.set(command, { when, times, ms: 0 });
  }

  /** Delays each `command`, or only its answer. */
  delay(command: FaultyCommand, ms: number, when: 'late' | 'answered late' = 'late'): void {
    this.#faults.set(command, { when, times: Number.POSITIVE_INFINITY, ms });
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

  onConnected: Store['onConnected'] = (act) => this.#store.onConnected(act);
  start: Store['start'] = (execution) => this.#through('start', () => this.#store.start(execution));
  peek: Store['peek'] = (request) => this.#through('peek', () => this.#store.peek(request));
  restart: Store['restart'] = (execution) => this.#through('restart', () => this.#store.restart(execution));
  renew: Store['renew'] = (owner) => this.#through('renew', () => this.#store.renew(owner));
  complete: Store['complete'] = (...args) => this.#through('complete', () => this.#store.complete(...args));
  release: Store['release'] = (owner) => this.#through('release', () => this.#store.release(owner));
  markInDoubt: Store['markInDoubt'] = (...args) =>
    this.#through('markInDoubt', () => this.#store.markInDoubt(...args));
  takeBack: Store['takeBack'] = (owner) => this.#through('takeBack', () => this.#store.takeBack(owner));
  aliveForMs: Store['aliveForMs'] = (owner) =>
    this.#through('aliveForMs', () => this.#store.aliveForMs(owner));
  get: Store['get'] = (scope) => this.#store.get(scope);
  isOwnerGone: Store['isOwnerGone'] = (scope) => this.#store.isOwnerGone(scope);
  expiresInMs: Store['expiresInMs'] = (scope) => this.#store.expiresInMs(scope);
  list: Store['list'] = (filter) => this.#through('list', () => this.#store.list(filter));
  resolve: Store['resolve'] = (...args) => this.#through('resolve', () => this.#store.resolve(...args));
  countDoubts: Store['countDoubts'] = (options) => this.#store.countDoubts(options);
  audit: Store['audit'] = (scope) => this.#store.audit(scope);
  readMark: Store['readMark'] = (mode) => this.#store.readMark(mode);
  mark: Store['mark'] = (...args) => this.#store.mark(...args);
  health: Store['health'] = () => this.#store.health();
  close: Store['close'] = () => this.#store.close();

  async #through<T>(command: FaultyCommand, work: () => Promise<T>): Promise<T> {
    this.asked[command]++;
    const fault = this.#faults.get(command);
    if (!fault || fault.times <= 0) return await work();
    fault.times--;
    if (fault.when === 'late') await sleep(fault.ms);
    if (fault.when === 'held') await fault.goOn;
    if (fault.when === 'before') throw new StoreUnavailable(`${command} was not sent`);
    const answer = await work();
    if (fault.when === 'answered late') await sleep(fault.ms);
    if (fault.when === 'after') throw new StoreUnavailable(`the answer to ${command} was lost`);
    return answer;
  }
}
