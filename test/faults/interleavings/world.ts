import { Ledger } from '../../../src/ledger/ledger.ts';
import { isAlive } from '../../../src/ledger/rules.ts';
import type { Scope, Token } from '../../../src/lib/brands.ts';
import type { Clock } from '../../../src/lib/clock.ts';
import type { Exchange } from '../../../src/lib/exchange.ts';
import { type Execution, type StartAnswer, StoreUnavailable } from '../../../src/store/contract.ts';
import type {
  Create,
  KeyRecord,
  Replace,
  Reply,
  Revision,
  Seen,
  Write,
} from '../../../src/store/register.ts';
import { MemoryRegister } from '../../support/memory-register.ts';
import { checkAnswers, checkSend } from './checks.ts';
import { choicesOfOperator } from './operator.ts';
import { type Gate, lifetimes, nameOf, Process, responseOf, scopeUnderTest } from './process.ts';
import { LEASE_MS, type Setup } from './setup.ts';

/**
 * The engine under test waits for gates and held timers only. A tick comes when no promise has anything left to do: then the
 * engine waits for the search. A turn of the event loop would show the same, and take three times as long as the search.
 */
const quiet = () => new Promise<void>((resolve) => process.nextTick(resolve));

/** Its owner shows that it is alive. Nothing renews a lease here. */
const isYoung = (held: Seen) => isAlive({ ...held, isLeased: false });

/** Choices that can be undone. */
const LAPSES = 'the lease lapses';
const DIES = 'dies';

/** One run of the requests, step by step as the search chooses. */
export class World {
  readonly setup: Setup;
  readonly processes: Process[];
  readonly register = new MemoryRegister(() => this.nowMs);
  /** What the register holds. */
  held: Seen | undefined;
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
  /** Executions whose starts come too late. */
  readonly #void = new Set<string>();
  /** Commands whose callers have given up, and that may still be executed. */
  readonly #underWay = new Map<string, { write: Write; happen: () => Promise<unknown> }>();
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
    this.processes = groups.map((group) => {
      const storeOf = (process: Process, clock: Clock) => new NamedLedger(this, process, clock);
      return new Process(group, storeOf, () => this.nowMs, setup);
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
        for (const [choice, open] of gate)
          if (choice !== 'lost' || this.#lostLeft > 0)
            add(`${place}: ${choice}`, () => this.#open(process, place, open));
      }
      for (const [label, fire] of process.ownChoices(() => this.#mayLook(process))) add(label, fire);
      if (this.#departuresLeft > 0) {
        for (const [label, leave] of process.departures()) add(label, () => this.#leave(leave));
      }
      if (this.#crashesLeft > 0) add(DIES, () => this.#die(process));
    }
    for (const [label, { happen }] of this.#underWay)
      choices.set(`${label} happens`, async () => {
        this.#underWay.delete(label);
        await happen().catch((error: unknown) => {
          // The token is void: the store refuses it, and no caller waits for the answer.
          if (!(error instanceof StoreUnavailable)) throw error;
        });
      });
    if (this.#canLapse()) choices.set(LAPSES, async () => this.#lapse());
    if (this.#resolutionsLeft > 0) {
      for (const [said, resolve] of choicesOfOperator(this)) {
        choices.set(`the operator says ${said}`, async () => {
          this.#resolutionsLeft--;
          this.operatorSaid = said;
          await resolve();
        });
      }
    }
    return choices;
  }

  /** What `look` sees after a choice that can be undone. Undefined: it cannot, and has to be taken. */
  async foresee<T>(choice: string, look: () => T): Promise<T | undefined> {
    const { held } = this;
    if (choice === LAPSES) {
      this.#lapses++;
      this.held = await this.register.read(scopeUnderTest);
      const seen = look();
      this.#lapses--;
      this.held = held;
      return seen;
    }
    const process = this.processes.find((_, index) => choice === `${nameOf(index)} ${DIES}`);
    if (!process) return undefined;
    const { diedStarted } = this;
    this.#die(process);
    const seen = look();
    process.isDead = false;
    this.#crashesLeft++;
    this.diedStarted = diedStarted;
    return seen;
  }

  async take(choice: string): Promise<void> {
    const step = this.choices().get(choice);
    if (!step) throw new Error(`there is no choice ${choice}: the engine is not deterministic`);
    await step();
    this.held = await this.register.read(scopeUnderTest);
    for (const process of this.#sawInFlight.keys())
      if (this.#sawInFlight.get(process) === '') this.#sawInFlight.set(process, this.#wordsOfHeld());
    for (const process of this.processes) checkAnswers(this, process);
  }

  get isComplete(): boolean {
    return this.processes.every(({ isOver }) => isOver);
  }

  #wordsOfHeld(): string {
    return this.held ? `${this.#wordsOf(this.held.record)} ${isYoung(this.held)}` : '';
  }

  #wordsOf({ state, token, completion, wasInDoubt, ownerGaveUp, restarted }: KeyRecord): string {
    const result = completion?.kind === 'response' ? completion.response.body.toString() : '';
    const flags = [wasInDoubt, ownerGaveUp, restarted].map(Number).join('');
    return [state, this.nameOfToken(token), flags, result].join(' ');
  }

  /**
   * Revisions are compared with what the store holds, and with nothing else. So it matters only whether it holds this one, or will
   * by a command that is still under way.
   */
  #relationOf(revision: Revision | undefined): string {
    if (!revision || !this.held) return revision === this.held ? '=' : '';
    if (this.held.record.revision.equals(revision)) return '=';
    for (const [label, { write }] of this.#underWay)
      if (write.record?.revision.equals(revision)) return label;
    return '';
  }

  get nowMs(): number {
    return this.#lapses * LEASE_MS;
  }

  /** Everything that the future can depend on, except the processes, which {@link processKeys} describes. */
  sharedKey(): string {
    const late = [...this.#underWay].map(([label, { write }]) => {
      const { record } = write;
      const expected =
        write.kind === 'create' ? Number(this.#isVoid(record?.token)) : this.#relationOf(write.revision);
      return `${label} ${expected} ${record ? this.#wordsOf(record) : ''}`;
    });
    const shared = [
      this.#wordsOfHeld(),
      ...[
        this.#lostLeft,
        this.#lapses,
        this.#crashesLeft,
        this.#resolutionsLeft,
        this.#departuresLeft,
        this.diedStarted,
      ],
      ...[this.operatorSaid, this.sent, late.toSorted()],
    ];
    return shared.join('|');
  }

  processKeys(): string[] {
    return this.processes.map((process) => {
      if (process.isDead) return 'dead';
      // Of a finished request only the answer is left, and it has been checked.
      if (process.isOver) return `over ${process.requests.map((name) => process.answers.get(name)?.kind)}`;
      const started = this.#started.has(process) ? 'started ' : '';
      const mayLook = this.#mayLook(process) ? 'may look ' : '';
      const fences = process.requests.map((name) => (this.#fences.get(name) ?? this.#lapses) < this.#lapses);
      return `${started}${mayLook}${fences.map(Number).join('')} ${process.seen
        .map(({ words, revision }) => (revision ? `${words} ${this.#relationOf(revision)}` : words))
        .join(',')}`;
    });
  }

  /** It has seen that the key is in flight, and nothing has changed since. */
  #mayLook(process: Process): boolean {
    return this.#sawInFlight.get(process) !== this.#wordsOfHeld();
  }

  #isVoid(token: Token | undefined): boolean {
    return token !== undefined && this.#void.has(this.nameOfToken(token));
  }

  nameOfToken(token: Buffer): string {
    return this.#names.get(token.toString('hex')) ?? 'the operator';
  }

  async #step(process: Process, step: () => void, label?: string): Promise<void> {
    if (label) process.seen.push({ words: label });
    step();
    await quiet();
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
  }

  #canLapse(): boolean {
    if (this.#lapses === this.setup.lapses || !this.held || this.isComplete) return false;
    return isYoung(this.held);
  }

  #run(process: Process, name: string, maySend: () => boolean): Promise<Exchange> {
    const { promise, resolve } = Promise.withResolvers<Exchange>();
    const answered: Gate = new Map([
      ['answered', () => resolve({ kind: 'complete', response: responseOf(name) })],
      ['reset', () => resolve({ kind: 'unknown', reason: 'reset', timedOut: false })],
    ]);
    const send = () => {
      const asked = this.setup.broken?.noFence || maySend();
      if (!asked) {
        resolve({ kind: 'not_sent', reason: 'the lease may have lapsed' });
        return;
      }
      checkSend(this, name);
      this.sent.push(name);
      process.gates.set(`${name} runs`, answered);
    };
    const refused = () => {
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

  /** A command to the register that reads. */
  read(process: Process): Promise<Seen | undefined> {
    return this.#command(
      process,
      'read',
      () => this.register.read(scopeUnderTest),
      (held) => held,
    );
  }

  create(process: Process, write: Create): Promise<Reply> {
    const { create = () => write } = this.setup.broken ?? {};
    const seen = this.held;
    const name = `${this.nameOfToken(write.record.token)} create`;
    return this.#write(process, name, write, () => create(write, this.held, seen));
  }

  replace(process: Process, write: Replace): Promise<Reply> {
    const { replace = () => write } = this.setup.broken ?? {};
    const token = write.endLeaseOf ?? write.record?.token;
    const name = `${token ? this.nameOfToken(token) : ''} ${write.record?.state ?? 'nothing'}`;
    return this.#write(process, name, write, () => replace(write, this.held));
  }

  #write(process: Process, name: string, write: Write, execute: () => Write): Promise<Reply> {
    // Of what it writes, an owner remembers its start and its restart.
    if (write.record?.state === 'executing')
      process.seen.push({ words: 'writes', revision: write.record.revision });
    const execution = async () => {
      const executed = execute();
      if (executed.kind === 'create') return await this.register.create(scopeUnderTest, executed);
      if (executed.voidToken) this.#void.add(this.nameOfToken(executed.voidToken));
      return await this.register.replace(scopeUnderTest, executed);
    };
    return this.#command(process, name, execution, (reply) => (reply.done ? 'done' : reply.held), write);
  }

  /** @param write undefined: it reads */
  #command<T>(
    process: Process,
    name: string,
    execute: () => Promise<T>,
    seenIn: (reply: T) => Seen | undefined | 'done',
    write?: Write,
  ): Promise<T> {
    const { promise, resolve, reject } = Promise.withResolvers<T>();
    // One engine may send the same command for two of its requests.
    let place = name;
    while (process.gates.has(place)) place += ', again';
    const done = () =>
      void execute().then(
        (reply) => {
          const seen = seenIn(reply);
          if (seen === undefined || seen === 'done') process.seen.push({ words: seen ?? 'nothing' });
          else {
            const { record } = seen;
            const words = `${this.#wordsOf(record)} ${isYoung(seen)}`;
            process.seen.push({ words, revision: record.revision });
            if (isYoung(seen)) this.#sawInFlight.set(process, '');
          }
          resolve(reply);
        },
        (error) => {
          process.seen.push({ words: 'refused' });
          reject(error);
        },
      );
    const lose = () => {
      this.#lostLeft--;
      if (write) this.#setUnderWay(`${nameOf(this.processes.indexOf(process))} ${place}`, write, execute);
      reject(new StoreUnavailable('lost'));
    };
    const gate: Gate = new Map([
      ['done', done],
      ['lost', lose],
    ]);
    process.gates.set(place, gate);
    return promise;
  }

  #setUnderWay(label: string, write: Write, happen: () => Promise<unknown>): void {
    let unique = label;
    while (this.#underWay.has(unique)) unique += ', again';
    this.#underWay.set(unique, { write, happen });
  }

  nameToken(process: Process, { token, requestId }: Execution): void {
    const attempt = (this.#attempts.get(requestId) ?? 0) + 1;
    this.#attempts.set(requestId, attempt);
    this.#names.set(token.toString('hex'), `${requestId}.${attempt}`);
    this.#started.add(process);
    this.#fences.set(requestId, this.#lapses);
  }
}

/** The ledger of a process. */
class NamedLedger extends Ledger {
  readonly #named: (execution: Execution) => void;

  constructor(world: World, process: Process, clock: Clock) {
    super(new GatedRegister(world, process), { gatewayId: '', lifetimes, clock });
    this.#named = (execution) => world.nameToken(process, execution);
  }

  override start(execution: Execution): Promise<StartAnswer> {
    this.#named(execution);
    return super.start(execution);
  }

  override restart(execution: Execution): Promise<'ok' | 'changed'> {
    this.#named(execution);
    return super.restart(execution);
  }
}

/** The register of the world, each of whose commands waits at a gate. */
class GatedRegister extends MemoryRegister {
  readonly #world: World;
  readonly #process: Process;

  constructor(world: World, process: Process) {
    super(() => world.nowMs);
    this.#world = world;
    this.#process = process;
  }

  override create = (_: Scope, write: Create) => this.#world.create(this.#process, write);
  override replace = (_: Scope, write: Replace) => this.#world.replace(this.#process, write);
  override read = () => this.#world.read(this.#process);
}
