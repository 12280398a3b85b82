// @ts-nocheck until the rules are the reference of this suite
import type { Exchange } from '../../../src/lib/exchange.ts';
import {
  type Execution,
  type PeekAnswer,
  type StartAnswer,
  type Store,
  StoreUnavailable,
} from '../../../src/store/contract.ts';
import { Reference } from '../model/reference.ts';
import { checkAnswers, checkSend } from './checks.ts';
import { choicesOfOperator } from './operator.ts';
import { type Commands, peekOn, restartOn, startOn } from './plain-store.ts';
import { type Gate, nameOf, Process, responseOf, scopeUnderTest } from './process.ts';
import { LEASE_MS, type Setup } from './setup.ts';
import { holdTimersIn } from './timers.ts';

type Answer = string | StartAnswer | PeekAnswer;

function wordsOf(answer: Answer): string {
  if (typeof answer === 'string') return answer;
  return answer.kind === 'completed' ? `completed ${answer.response.body}` : answer.kind;
}

/**
 * The engine under test waits for gates and held timers only. A tick comes when no promise has anything left to do: then the
 * engine waits for the search. A turn of the event loop would show the same, and take three times as long as the search.
 */
const quiet = () => new Promise<void>((resolve) => process.nextTick(resolve));

const lifetimes = { leaseMs: LEASE_MS, retentionMs: 100 * LEASE_MS, inDoubtRetentionMs: 100 * LEASE_MS };

/** One run of the requests, step by step as the search chooses. */
export class World {
  readonly setup: Setup;
  readonly processes: Process[];
  readonly reference = new Reference(lifetimes);
  /** Names of requests of which a byte was sent, so that they may have been executed. */
  readonly sent: string[] = [];
  /** Requests whose answers have been checked. */
  readonly checked = new Set<string>();
  /** Processes that died between issuing a start and the result of their request. */
  diedStarted = 0;
  /** The operator's resolution of the key. */
  operatorSaid: 'released' | 'completed' | undefined;
  readonly #names = new Map<string, string>();
  readonly #attempts = new Map<string, number>();
  /** Commands whose callers have given up, and that may still be executed. */
  readonly #underWay = new Map<string, () => void>();
  readonly #started = new Set<Process>();
  /** Requests that may still check their fences, and how many leases had lapsed when each began. */
  readonly #fences = new Map<string, number>();
  readonly #sawInFlight = new Map<Process, string>();
  #lapses = 0;
  #lostLeft: number;
  #crashesLeft: number;
  #resolutionsLeft: number;
  #departuresLeft: number;

  private constructor(setup: Setup) {
    this.setup = setup;
    this.#lostLeft = setup.lostCommands;
    this.#crashesLeft = setup.crashes;
    this.#resolutionsLeft = setup.resolutions;
    this.#departuresLeft = setup.departures;
    const names = Array.from({ length: setup.requests }, (_, index) => nameOf(index));
    const groups = setup.oneEngine ? [names] : names.map((name) => [name]);
    const wallMs = () => this.#lapses * LEASE_MS;
    this.processes = groups.map((group) => {
      const store = this.#storeOf(() => process) as Store;
      const process: Process = new Process(group, store, wallMs, setup);
      return process;
    });
  }

  /** A new run, or one after a sequence of choices. */
  static async after(setup: Setup, choices: readonly string[]): Promise<World> {
    const world = new World(setup);
    for (const process of world.processes) {
      await world.#step(process, () =>
        process.start(setup, (name, maySend) => world.#run(process, name, maySend)),
      );
    }
    for (const choice of choices) await world.take(choice);
    return world;
  }

  /** Everything that may happen next, each with a descriptive name. */
  choices(): Map<string, () => Promise<void>> {
    const choices = new Map<string, () => Promise<void>>();
    for (const [index, process] of this.processes.entries()) {
      if (process.isOver) continue;
      const add = (label: string, step: () => void) =>
        choices.set(`${nameOf(index)} ${label}`, () => this.#step(process, step, label));
      for (const [place, gate] of process.gates) {
        for (const [choice, open] of gate) add(`${place}: ${choice}`, () => this.#open(process, place, open));
      }
      const mayLook = () => this.#sawInFlight.get(process) !== this.storeKey();
      for (const [label, fire] of process.ownChoices(mayLook)) add(label, fire);
      if (this.#departuresLeft > 0) {
        for (const [label, leave] of process.departures()) add(label, () => this.#leave(leave));
      }
      if (this.#crashesLeft > 0) add('dies', () => this.#die(process));
    }
    for (const [label, happen] of this.#underWay) choices.set(`${label} happens`, async () => happen());
    if (this.#canLapse()) choices.set('the lease lapses', async () => this.#lapse());
    if (this.#resolutionsLeft > 0) {
      for (const [said, resolve] of choicesOfOperator(this)) {
        choices.set(`the operator says ${said}`, async () => {
          this.#resolutionsLeft--;
          this.operatorSaid = said;
          resolve();
        });
      }
    }
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

  /** The part of the store that the future can depend on. */
  storeKey(): string {
    const record = this.reference.at(scopeUnderTest);
    const words: string[] = [];
    if (this.reference.hasVoidTokens)
      for (const [token, name] of this.#names)
        if (this.reference.isVoid(Buffer.from(token, 'hex') as never)) words.push(`${name} is void`);
    if (!record) return ['absent', ...words].join(' ');
    const { state, token, completion, wasInDoubt, gaveUp } = record;
    const result = completion?.kind === 'response' ? completion.response.body.toString() : '';
    const flags = [this.reference.isAlive(record), wasInDoubt, gaveUp].map(Number).join('');
    return [state, this.nameOfToken(token), flags, result, ...words].join(' ');
  }

  /** Everything that the future can depend on, except the processes, which {@link processKeys} describes. */
  sharedKey(): string {
    const shared = [
      this.storeKey(),
      ...[
        this.#lostLeft,
        this.#lapses,
        this.#crashesLeft,
        this.#resolutionsLeft,
        this.#departuresLeft,
        this.diedStarted,
      ],
      ...[this.operatorSaid, this.sent, [...this.#underWay.keys()].toSorted()],
    ];
    return shared.join('|');
  }

  processKeys(): string[] {
    return this.processes.map((process) => {
      if (process.isDead) return 'dead';
      // Of a finished request only the answer is left, and it has been checked.
      if (process.isOver) return `over ${process.requests.map((name) => process.answers.get(name)?.kind)}`;
      const started = this.#started.has(process) ? 'started ' : '';
      const mayLook = this.#sawInFlight.get(process) !== this.storeKey() ? 'may look ' : '';
      const fences = process.requests.map((name) => (this.#fences.get(name) ?? this.#lapses) < this.#lapses);
      return `${started}${mayLook}${fences.map(Number).join('')} ${process.seen.join(',')}`;
    });
  }

  nameOfToken(token: Buffer): string {
    return this.#names.get(token.toString('hex')) ?? 'the operator';
  }

  async #step(process: Process, step: () => void, label?: string): Promise<void> {
    holdTimersIn(process.timers);
    if (label) process.seen.push(label);
    step();
    await quiet();
    holdTimersIn(undefined);
  }

  #open(process: Process, place: string, open: () => void): void {
    process.gates.delete(place);
    open();
  }

  #leave(leave: () => void): void {
    this.#departuresLeft--;
    leave();
  }

  #die(process: Process): void {
    process.isDead = true;
    this.#crashesLeft--;
    if (this.#started.has(process)) this.diedStarted++;
  }

  #lapse(): void {
    this.#lapses++;
    this.reference.nowMs += LEASE_MS;
  }

  #canLapse(): boolean {
    const record = this.reference.at(scopeUnderTest);
    if (this.#lapses === this.setup.lapses || !record || this.isComplete) return false;
    return record.state === 'executing' && this.reference.isAlive(record);
  }

  #run(process: Process, name: string, maySend: () => boolean): Promise<Exchange> {
    const { promise, resolve } = Promise.withResolvers<Exchange>();
    const answered: Gate = new Map([
      ['answered', () => resolve({ kind: 'complete', response: responseOf(name) })],
      ['reset', () => resolve({ kind: 'unknown', reason: 'reset', timedOut: false })],
    ]);
    const send = () => {
      const asked = this.setup.broken?.noFence || maySend();
      this.#fences.delete(name);
      if (!asked) {
        resolve({ kind: 'not_sent', reason: 'the lease may have lapsed' });
        return;
      }
      checkSend(this, name);
      this.sent.push(name);
      process.gates.set(`${name} runs`, answered);
    };
    const refused = () => {
      this.#fences.delete(name);
      resolve({ kind: 'not_sent', reason: 'refused' });
    };
    process.gates.set(
      `${name} begins to send`,
      new Map([
        ['sent', send],
        ['refused', refused],
      ]),
    );
    return promise;
  }

  /** The reference as a store whose every command waits at a gate. */
  #storeOf(processOf: () => Process): Commands {
    const { reference } = this;
    const { broken = {} } = this.setup;
    const at = <T extends Answer>(command: string, execute: () => T) =>
      this.#command(processOf(), command, execute);
    const ofOwner = <T extends Answer>(command: string, token: Buffer, execute: () => T) =>
      at(`${this.nameOfToken(token)} ${command}`, execute);
    return {
      start: (execution) => {
        this.#nameToken(processOf(), execution);
        const seen = reference.at(execution.scope);
        return ofOwner('start', execution.token, () =>
          broken.start?.(reference, execution, seen) ? { kind: 'started' } : startOn(reference, execution),
        );
      },
      peek: (request) =>
        at(`${'requestId' in request ? request.requestId : ''} peek`, () => peekOn(reference, request)),
      restart: (execution) => {
        this.#nameToken(processOf(), execution);
        return ofOwner('restart', execution.token, () =>
          broken.restart ? broken.restart(reference, execution) : restartOn(reference, execution),
        );
      },
      complete: (execution, completion) =>
        ofOwner('complete', execution.token, () =>
          broken.complete
            ? broken.complete(reference, execution, completion)
            : reference.complete(execution, completion),
        ),
      release: (owner, options) =>
        ofOwner('release', owner.token, () =>
          reference.release(owner, broken.release ? broken.release(options) : options),
        ),
      markInDoubt: (owner, options) =>
        ofOwner('mark', owner.token, () => reference.markInDoubt(owner, options)),
      renew: async () => 'ok',
      get: async () => undefined,
    };
  }

  #command<T extends Answer>(process: Process, place: string, execute: () => T): Promise<T> {
    const { promise, resolve, reject } = Promise.withResolvers<T>();
    const done = () => {
      const answer = execute();
      process.seen.push(wordsOf(answer));
      if (wordsOf(answer) === 'in_flight') this.#sawInFlight.set(process, this.storeKey());
      resolve(answer);
    };
    const lose = () => {
      this.#lostLeft--;
      if (!place.endsWith(' peek')) this.#underWay.set(place, () => this.#happen(place, execute));
      reject(new StoreUnavailable('lost'));
    };
    const gate: Gate = new Map([['done', done]]);
    if (this.#lostLeft > 0) gate.set('lost', lose);
    process.gates.set(place, gate);
    return promise;
  }

  #happen(place: string, execute: () => unknown): void {
    this.#underWay.delete(place);
    try {
      execute();
    } catch (error) {
      // The token is void: the store refuses it, and no caller waits for the answer.
      if (!(error instanceof StoreUnavailable)) throw error;
    }
  }

  #nameToken(process: Process, { token, requestId }: Execution): void {
    const attempt = (this.#attempts.get(requestId) ?? 0) + 1;
    this.#attempts.set(requestId, attempt);
    this.#names.set(token.toString('hex'), `${requestId}.${attempt}`);
    this.#started.add(process);
    this.#fences.set(requestId, this.#lapses);
  }
}
