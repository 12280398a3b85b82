import { setImmediate as nextTurn } from 'node:timers';
import type { Exchange } from '../../../src/idempotency/outcome.ts';
import {
  type Claim,
  type ClaimRequest,
  type Owner,
  type Store,
  StoreUnavailable,
} from '../../../src/idempotency/store.ts';
import { Reference } from '../model/reference.ts';
import { checkAnswers } from './checks.ts';
import { claimOf } from './plain-store.ts';
import { type Gate, nameOf, Process, responseOf, scopeUnderTest } from './process.ts';
import { LEASE_MS, type Setup, WAIT_MS } from './setup.ts';
import { holdTimersIn } from './timers.ts';

const kindOf = (answer: string | Claim) => (typeof answer === 'string' ? answer : answer.kind);

/** The engine under test waits for nothing but gates and held timers: in the next turn it stands still. */
const quiet = () => new Promise<void>((resolve) => void nextTurn(resolve));

/** One execution of the requests, step by step as the search chooses. */
export class World {
  readonly processes: Process[];
  readonly reference: Reference;
  /** Names of requests of which a byte was sent: each of them may have been executed. */
  readonly sent: string[] = [];
  /** Requests whose answers have been checked. */
  readonly checked = new Set<string>();
  /** Processes that died between sending a begin and the end of their request. */
  diedBegun = 0;
  readonly #setup: Setup;
  readonly #names = new Map<string, string>();
  readonly #attempts = new Map<string, number>();
  /** Commands that their callers have given up, and that may still happen. */
  readonly #underWay = new Map<string, () => unknown>();
  readonly #begun = new Set<Process>();
  readonly #sawInFlight = new Map<Process, string>();
  #lostLeft: number;
  #lapsesLeft: number;
  #crashesLeft: number;

  private constructor(setup: Setup) {
    this.#setup = setup;
    this.#lostLeft = setup.lostCommands;
    this.#lapsesLeft = setup.lapses;
    this.#crashesLeft = setup.crashes;
    this.reference = new Reference(
      { leaseMs: LEASE_MS, retentionMs: 100 * LEASE_MS },
      { knowsOwnClaim: true },
    );
    const names = Array.from({ length: setup.requests }, (_, index) => nameOf(index));
    const groups = setup.oneEngine ? [names] : names.map((name) => [name]);
    this.processes = groups.map((group) => {
      const process: Process = new Process(
        group,
        this.#storeOf(() => process),
      );
      return process;
    });
  }

  /** At its start, or after a sequence of choices. */
  static async after(setup: Setup, choices: readonly string[]): Promise<World> {
    const world = new World(setup);
    for (const process of world.processes) await world.#step(process, () => world.#start(process));
    for (const choice of choices) await world.take(choice);
    return world;
  }

  /** Everything that may happen next, each under a name that says what it is. */
  choices(): Map<string, () => Promise<void>> {
    const choices = new Map<string, () => Promise<void>>();
    for (const [index, process] of this.processes.entries()) {
      if (process.isOver) continue;
      const add = (label: string, step: () => void) =>
        choices.set(`${nameOf(index)} ${label}`, () => this.#step(process, step, label));
      for (const [place, gate] of process.gates) {
        for (const [choice, open] of gate) add(`${place}: ${choice}`, () => this.#open(process, place, open));
      }
      const mayLook = this.#sawInFlight.get(process) !== this.storeKey();
      for (const [label, fire] of process.timerChoices(mayLook)) add(label, fire);
      if (this.#crashesLeft > 0) add('dies', () => this.#die(process));
    }
    for (const [label, happen] of this.#underWay) choices.set(`${label} happens`, async () => void happen());
    if (this.#canLapse()) choices.set('the lease lapses', async () => this.#lapse());
    return choices;
  }

  async take(choice: string): Promise<void> {
    const step = this.choices().get(choice);
    if (!step) throw new Error(`there is no choice ${choice}: the engine is not deterministic`);
    await step();
    for (const process of this.processes) checkAnswers(this, process);
  }

  get isComplete(): boolean {
    return this.processes.every(({ isOver }) => isOver);
  }

  /** The store, as far as what comes can hang on it. */
  storeKey(): string {
    const stands = this.reference.at(scopeUnderTest);
    if (!stands) return 'absent';
    const { state, token, settlement } = stands;
    const result = settlement?.kind === 'response' ? settlement.response.body.toString() : '';
    return [state, this.#nameOfToken(token), this.reference.isAlive(stands), result].join(' ');
  }

  /** All that what comes can hang on, but for the processes: each of those is told by {@link processKeys}. */
  sharedKey(): string {
    const happening = [...this.#underWay.keys()].toSorted();
    const shared = [
      this.storeKey(),
      this.#lostLeft,
      this.#lapsesLeft,
      this.#crashesLeft,
      this.diedBegun,
      this.sent,
      happening,
    ];
    return shared.join('|');
  }

  processKeys(): string[] {
    return this.processes.map((process) => {
      const begun = this.#begun.has(process) ? 'begun ' : '';
      if (process.isDead) return 'dead';
      // What is over has only its answers left, and those have been checked.
      if (process.isOver) return `over ${process.requests.map((name) => process.answers.get(name)?.kind)}`;
      const mayLook = process.isWaiting && this.#sawInFlight.get(process) !== this.storeKey();
      return `${begun}${mayLook ? 'may look ' : ''}${process.seen.join(',')}`;
    });
  }

  async #step(process: Process, step: () => void, label?: string): Promise<void> {
    holdTimersIn(process.timers);
    if (label) process.seen.push(label);
    step();
    await quiet();
    holdTimersIn(undefined);
  }

  #start(process: Process): void {
    process.start(this.#setup.waiting ? WAIT_MS : 0, (name) => this.#run(process, name));
  }

  #open(process: Process, place: string, open: () => void): void {
    process.gates.delete(place);
    open();
  }

  #die(process: Process): void {
    process.isDead = true;
    this.#crashesLeft--;
    if (this.#begun.has(process)) this.diedBegun++;
  }

  /** Only in the store: an owner that has slept through it sends all the same, and under `hold` that does no harm. */
  #lapse(): void {
    this.#lapsesLeft--;
    this.reference.nowMs += LEASE_MS;
  }

  #canLapse(): boolean {
    const stands = this.reference.at(scopeUnderTest);
    if (this.#lapsesLeft === 0 || !stands || this.isComplete || !this.reference.isAlive(stands)) return false;
    return stands.state === 'claimed' || stands.state === 'executing';
  }

  #run(process: Process, name: string): Promise<Exchange> {
    const { promise, resolve } = Promise.withResolvers<Exchange>();
    const answered: Gate = new Map([
      ['answered', () => resolve({ kind: 'complete', response: responseOf(name) })],
      ['reset', () => resolve({ kind: 'unknown', reason: 'reset', timedOut: false })],
    ]);
    const start: Gate = new Map([
      [
        'sent',
        () => {
          this.sent.push(name);
          process.gates.set(`${name} runs`, answered);
        },
      ],
      ['refused', () => resolve({ kind: 'not_sent', reason: 'refused' })],
    ]);
    process.gates.set(`${name} starts`, start);
    return promise;
  }

  /** The reference as a store whose every command waits at a gate. */
  #storeOf(processOf: () => Process): Store {
    const at = <T extends string | Claim>(command: string, owner: Owner, execute: () => T) =>
      this.#command(processOf(), `${this.#nameOfToken(owner.token)} ${command}`, execute);
    const { reference } = this;
    const { broken = {} } = this.#setup;
    const store: Partial<Store> = {
      claim: (request) => {
        this.#baptise(request);
        const seen = reference.at(request.scope);
        return at('claim', request, () =>
          claimOf(reference, request, broken.claim?.(reference, request, seen) ?? reference.claim(request)),
        );
      },
      get: async () => undefined,
      begin: (owner) => {
        this.#begun.add(processOf());
        return at('begin', owner, () => broken.begin?.(reference, owner) ?? reference.begin(owner));
      },
      settle: (owner, settlement) => at('settle', owner, () => reference.settle(owner, settlement)),
      release: (owner) => at('release', owner, () => reference.release(owner)),
      markInDoubt: (owner) => at('mark', owner, () => reference.markInDoubt(owner)),
    };
    return store as Store;
  }

  #command<T extends string | Claim>(process: Process, place: string, execute: () => T): Promise<T> {
    const { promise, resolve, reject } = Promise.withResolvers<T>();
    const gate: Gate = new Map([
      [
        'done',
        () => {
          const answer = execute();
          process.seen.push(kindOf(answer));
          if (kindOf(answer) === 'in_flight') this.#sawInFlight.set(process, this.storeKey());
          resolve(answer);
        },
      ],
    ]);
    if (this.#lostLeft > 0)
      gate.set('lost', () => {
        this.#lostLeft--;
        this.#underWay.set(place, () => this.#underWay.delete(place) && execute());
        reject(new StoreUnavailable('lost'));
      });
    process.gates.set(place, gate);
    return promise;
  }

  #baptise({ token, operation }: ClaimRequest): void {
    const attempt = (this.#attempts.get(operation) ?? 0) + 1;
    this.#attempts.set(operation, attempt);
    this.#names.set(token.toString('hex'), `${operation}.${attempt}`);
  }

  #nameOfToken(token: Buffer): string {
    return this.#names.get(token.toString('hex')) ?? 'nobody';
  }
}
