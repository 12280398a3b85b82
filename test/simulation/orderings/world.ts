import type { Result } from '../../../src/idempotency/call.ts';
import { isAlive } from '../../../src/ledger/rules.ts';
import type { Token } from '../../../src/lib/brands.ts';
import type { Exchange } from '../../../src/lib/exchange.ts';
import type { Resolution } from '../../../src/store/doubts.ts';
import type { Held, Register, Reply, Seen, Write } from '../../../src/store/register.ts';
import { type Execution, type KeyRecord, type Revision, StoreUnavailable } from '../../../src/store/types.ts';
import { MemoryRegister } from '../../support/memory-register.ts';
import { RESET, responseOf } from '../backend.ts';
import { Checker } from '../checker.ts';
import { diceOf } from '../dice.ts';
import { type Broken, Gateway, type GatewayParts } from '../gateway.ts';
import { Machine, Process } from '../machine.ts';
import { Timeline } from '../timeline.ts';
import { type Choice, callOf, Host, LEASE_MS, PLAN, RECORD_ID } from './host.ts';

/** The parameters of one search. */
export interface Setup {
  /** The number of identical requests with one key, all present from the beginning. */
  requests: number;
  /** All requests run in one gateway; otherwise each has a separate one. */
  oneGateway: boolean;
  /** Whether duplicates wait for the result of the first request. */
  waiting: boolean;
  inDoubt: 'hold' | 'retry';
  /** Each gateway has one slot, which another request occupies at first. That request may end at any time, or never. */
  slotTaken: boolean;
  /** The number of commands to the register whose caller gets an error. The command itself is executed at any later time, or never. */
  lostCommands: number;
  /** How often the current lease may lapse. Without a limit two owners could restart a key for ever. */
  lapses: number;
  /** The number of gateways that may die. */
  crashes: number;
  /** How often an operator resolves the key, at any time at which the store allows it. */
  resolutions: number;
  /** The number of merchants that may disconnect before they have an answer. */
  departures: number;
  broken: Mistake;
}

/** A mistake that the search must find. */
export interface Mistake extends Broken {
  /** What the register executes in place of a write. `seen`: what it held when the command was sent. */
  executes?(write: Write, held: Seen | undefined, seen: Seen | undefined): Write;
  /** Operators resolve the key of a living owner. */
  resolvesLiving?: true;
}

/** The promise was broken. */
export class BrokenPromise extends Error {
  override readonly name = 'BrokenPromise';
}

function demand(holds: boolean | undefined, otherwise: string): void {
  if (!holds) throw new BrokenPromise(otherwise);
}

/** Names are in angle brackets, so that requests can be renamed wherever they are mentioned. */
export const nameOf = (index: number): string => `<${index}>`;
const LATER = '<later>';

const answered = (request: string): Exchange => ({
  ...{ kind: 'complete', response: responseOf({ result: request }) },
});

/** Pays at once. */
const WILLING: GatewayParts['backend'] = {
  isCalm: true,
  receive: ({ request }, answer) => answer(answered(request)),
  ask: () => ({ kind: 'failed', said: '' }),
};

/**
 * The gateways wait for gates and held timers only. A tick comes when no promise has anything left to do: then they wait for the
 * search. A turn of the event loop would show the same, and take three times as long as the search.
 */
const quiet = () => new Promise<void>((resolve) => process.nextTick(resolve));

/** Whether a record's age shows that its owner is alive. Nothing renews a lease here. */
const isYoung = (held: Seen) => isAlive(held as Held);

const bodyOf = (record: KeyRecord | undefined): string | undefined =>
  record?.completion?.kind === 'response' ? record.completion.response.body.toString() : undefined;

/** One run of the requests, step by step as the search chooses. */
export class World {
  readonly #setup: Setup;
  /** How much of what the setup limits may still happen. */
  readonly #left: Setup;
  readonly #timeline = new Timeline();
  readonly #register = new MemoryRegister(() => this.#timeline.nowMs, '0'.repeat(32));
  readonly #checker: Checker;
  readonly #hosts: Host[];
  /** What the register holds. */
  #held: Seen | undefined;
  #words = '';
  /** Names of requests of which a byte was sent, so that they may have been executed. */
  readonly #sent: string[] = [];
  readonly #names = new Map<Token, string>();
  readonly #attempts = new Map<string, number>();
  /** When each request began that may still ask its fence. */
  readonly #begunMs = new Map<string, number>();
  /** Executions whose starts come too late. */
  readonly #void = new Set<Token>();
  /** Commands whose callers have given up, and that may still be executed. */
  readonly #underWay = new Map<string, { write: Write; happen: () => Promise<unknown> }>();

  private constructor(setup: Setup) {
    this.#setup = setup;
    this.#left = { ...setup };
    const maySendAgain = setup.inDoubt === 'retry';
    this.#checker = new Checker({ slackMs: 0, maySendAgain, isQuiet: false });
    const names = Array.from({ length: setup.requests }, (_, index) => nameOf(index));
    const groups = setup.oneGateway ? [names] : names.map((name) => [name]);
    this.#hosts = groups.map((group) => this.#newHost(group));
  }

  /** A new run, or one after a sequence of choices. */
  static async after(setup: Setup, choices: readonly string[]): Promise<World> {
    const world = new World(setup);
    for (const host of world.#hosts) {
      host.begin(setup.waiting);
      await quiet();
    }
    for (const choice of choices) await world.take(choice);
    return world;
  }

  /** Everything that may happen next. @param wanted leaves out choices of other hosts than the one that it names */
  *choices(wanted = ''): Iterable<Choice> {
    for (const [index, host] of this.#hosts.entries()) {
      if (host.isOver || (wanted.startsWith('<') && !wanted.startsWith(nameOf(index)))) continue;
      for (const [label, act] of this.#choicesOf(host)) {
        const seeAndAct = () => {
          host.seen.push({ words: label });
          act();
        };
        yield [`${nameOf(index)} ${label}`, seeAndAct];
      }
      if (this.#dead.length < this.#setup.crashes) {
        const setDead = (isDead: boolean) => () => {
          host.isDead = isDead;
        };
        yield [`${nameOf(index)} dies`, setDead(true), setDead(false)];
      }
    }
    for (const [label, { happen }] of this.#underWay) {
      const happenNow = () => {
        this.#underWay.delete(label);
        void happen();
      };
      yield [`${label} happens`, happenNow];
    }
    const { lapses, resolutions } = this.#left;
    if (lapses > 0 && this.#held && !this.isComplete && isYoung(this.#held))
      yield ['the lease lapses', () => this.#lapse(1), () => this.#lapse(-1)];
    if (resolutions > 0 && this.#mayResolve) {
      yield ['the operator says completed', () => this.#resolve('completed')];
      // What was sent may have been executed; no gateway can protect from an operator who releases it.
      if (this.#sent.length === 0) yield ['the operator says released', () => this.#resolve('released')];
    }
  }

  *#choicesOf(host: Host): Iterable<Choice> {
    for (const [place, gate] of host.gates) {
      for (const choice in gate) {
        if (choice === 'lost' && this.#left.lostCommands === 0) continue;
        const open = () => {
          host.gates.delete(place);
          gate[choice]?.();
        };
        yield [`${place}: ${choice}`, open];
      }
    }
    yield* host.ownChoices(() => this.#mayLook(host));
    yield* host.departures(this.#left);
  }

  /** What `look` sees after a choice, if it can be undone. Another choice has to be taken. */
  async foresee<T>([, act, undo]: Choice, look: () => T): Promise<T | undefined> {
    if (!undo) return undefined;
    act();
    await this.#read();
    const seen = look();
    undo();
    await this.#read();
    return seen;
  }

  async take(choice: string): Promise<void> {
    for (const [label, act] of this.choices(choice)) {
      if (label !== choice) continue;
      act();
      return await this.#judge();
    }
    throw new Error(`there is no choice ${choice}: the engine is not deterministic`);
  }

  /** Waits until nothing goes on by itself, then checks that no answer contradicts what happened. */
  async #judge(): Promise<void> {
    await quiet();
    await this.#read();
    for (const host of this.#hosts) {
      if (host.sawInFlight === '') host.sawInFlight = this.#words;
      for (const [name, answer] of host.newAnswers.splice(0)) this.#judgeAnswer(host, name, answer);
    }
  }

  get #dead(): Host[] {
    return this.#hosts.filter(({ isDead }) => isDead);
  }

  get isComplete(): boolean {
    return this.#hosts.every(({ isOver }) => isOver);
  }

  /** When every lease has lapsed, one more request is sent, which gets an answer in any case. No choice can be taken after this. */
  async end(): Promise<void> {
    const isHold = this.#setup.inDoubt === 'hold';
    const result = bodyOf(this.#held?.record);
    const mustKeep = isHold && this.#hosts.some(({ isDead, hasCompleted }) => hasCompleted && !isDead);
    demand(!mustKeep || result !== undefined, 'a result was answered, and none is stored');
    this.#lapse(1);
    this.#checker.requested(LATER, { atMs: this.#timeline.nowMs, isOther: false, operation: 'withdraw' });
    const answer = await this.#newGateway(this.#newProcess(LATER)).handle({ ...callOf(LATER), waitMs: 0 });
    this.#tell(LATER, answer);
    const what = `the result is ${result}, sent were ${this.#sent}, and a retry got ${answer.kind}`;
    if (result !== undefined)
      demand(answer.kind === 'replayed' && answer.response.body.toString() === result, what);
    else if (answer.kind === 'in_doubt')
      // Of a key of which nothing was sent, only a gateway that died after a start may leave a doubt.
      demand(isHold && (this.#sent.length > 0 || this.#dead.some(({ hasStarted }) => hasStarted)), what);
    else {
      demand(answer.kind === 'executed' && answer.stored, what);
      demand(!isHold || this.#sent.length === 0, what);
    }
  }

  #judgeAnswer({ gateway }: Host, name: string, answer: Result): void {
    const result = bodyOf(this.#held?.record);
    this.#tell(name, answer);
    if (answer.kind === 'executed' && answer.stored)
      demand(result === name, `${name} was answered before it was completed`);
    else if (answer.kind === 'executed' && answer.decision === 'complete')
      demand(gateway.engine.pendingWrites > 0, `${name} was answered, and its result is given up`);
    else if (answer.kind === 'replayed') {
      const replayed = answer.response.body.toString();
      demand(replayed === result, `${name} got ${replayed}, which is not stored`);
      demand(replayed !== name, `${name} got its own result as a replay`);
    } else demand(!/^(?:mismatch|tombstone|closing)$/.test(answer.kind), `${name} got ${answer.kind}`);
  }

  #tell(name: string, answer: Result): void {
    this.#checker.told(RECORD_ID, name, answer, this.#timeline.nowMs);
    const [violation] = this.#checker.violations;
    demand(violation === undefined, violation ?? '');
  }

  /** Sends a request, which must own the key at that moment. If another was sent before it, the key must have been in doubt since. */
  #send(name: string): void {
    const record = this.#held?.record;
    const owner = record && this.#nameOf(record.token);
    demand(owner?.startsWith(name), `${name} was sent, and the key belongs to ${owner}`);
    demand(record?.state === 'executing', `${name} was sent, and the key is ${record?.state}`);
    const mayBeSent = this.#sent.length === 0 || record?.wasInDoubt;
    demand(mayBeSent, `${name} was sent after ${this.#sent}, which are not in doubt`);
    this.#sent.push(name);
  }

  async #read(): Promise<void> {
    const held = await this.#register.read(RECORD_ID);
    this.#held = held;
    this.#words = held ? `${this.#wordsOf(held.record)} ${isYoung(held)}` : '';
  }

  #wordsOf(record: KeyRecord): string {
    const flags = [record.wasInDoubt, record.ownerGaveUp, record.restarted].map(Number).join('');
    return [record.state, this.#nameOf(record.token), flags, bodyOf(record)].join(' ');
  }

  /**
   * Revisions are compared with what the store holds, and with nothing else. So it matters only whether it holds this one, or will
   * by a command that is still under way.
   */
  #relationOf(revision: Revision | undefined): string {
    if (!revision || !this.#held) return revision === this.#held ? '=' : '';
    if (this.#held.record.revision.equals(revision)) return '=';
    for (const [label, { write }] of this.#underWay)
      if (write.record?.revision.equals(revision)) return label;
    return '';
  }

  /** Everything that the future can depend on, except the gateways, which {@link hostKeys} describes. */
  sharedKey(): string {
    const late = [...this.#underWay].map(([label, { write }]) => {
      const { record } = write;
      const isVoid = record !== undefined && this.#void.has(record.token);
      const expected = write.kind === 'create' ? Number(isVoid) : this.#relationOf(write.revision);
      return `${label} ${expected} ${record ? this.#wordsOf(record) : ''}`;
    });
    const { lostCommands, lapses, resolutions, departures } = this.#left;
    return [
      ...[this.#words, lostCommands, lapses, resolutions, departures],
      ...[this.#sent, late.toSorted(), this.#checker.stateOf(RECORD_ID)],
    ].join('|');
  }

  hostKeys(): string[] {
    const { nowMs } = this.#timeline;
    return this.#hosts.map((host) => {
      if (host.isDead) return host.hasStarted ? 'dead, started' : 'dead';
      // The answers of a finished gateway have been judged. What is left is that a result must not be lost.
      if (host.isOver) return host.hasCompleted ? 'over, completed' : 'over';
      const fences = host.requests.map((name) => (this.#begunMs.get(name) ?? nowMs) < nowMs);
      const flags = [host.hasStarted, this.#mayLook(host), ...fences].map(Number).join('');
      const seen = host.seen.map(({ words, revision }) =>
        revision ? `${words} ${this.#relationOf(revision)}` : words,
      );
      return `${flags} ${seen}`;
    });
  }

  /** Whether a poll can find something new: not if the host has seen that the key is in flight and nothing has changed since. */
  #mayLook(host: Host): boolean {
    return host.sawInFlight !== this.#words;
  }

  #nameOf(token: Token): string {
    return this.#names.get(token) ?? 'the operator';
  }

  #lapse(times: number): void {
    this.#left.lapses -= times;
    this.#timeline.nowMs += times * LEASE_MS;
  }

  get #mayResolve(): boolean {
    if (!this.#held || this.#held.record.state === 'completed') return false;
    return !isYoung(this.#held) || this.#setup.broken.resolvesLiving === true;
  }

  #resolve(as: 'completed' | 'released'): void {
    const { ledger } = this.#newGateway(this.#newProcess(`operator ${this.#left.resolutions--}`));
    const response = responseOf({ result: 'what the operator found' });
    const resolution: Resolution =
      as === 'released' ? { as } : { as, completion: { kind: 'response', response } };
    const words = as === 'released' ? undefined : `${response.status} ${response.body}`;
    this.#checker.resolving(RECORD_ID, as, words, this.#timeline.nowMs);
    const seen = (this.#held as Seen).record.token;
    void ledger.resolve(RECORD_ID, seen, resolution, { by: 'ada', reason: 'the books show it' });
  }

  #newProcess(name: string): Process {
    const machine = new Machine(this.#timeline, { wallAheadMs: 0, rate: 1 }, diceOf(0, name));
    return new Process(machine, name, this.#timeline, 0);
  }

  #newGateway(process: Process, register: Register = this.#register, backend = WILLING): Gateway {
    const { inDoubt, slotTaken, broken } = this.#setup;
    const parts = {
      ...{ process, register, backend, timeline: this.#timeline, checker: this.#checker },
      ...{ layer: 'gateway', hop: '', dice: diceOf(0, process.name) },
      ...{ excuse() {}, step() {}, say() {}, event() {} },
    };
    const gateway = new Gateway({ ...PLAN, inDoubt, maxConnections: slotTaken ? 1 : 10 }, parts, broken);
    gateway.connect = (_, connected) => connected(false);
    return gateway;
  }

  /** A gateway's process whose commands and requests to the backend wait at gates. */
  #newHost(requests: readonly string[]): Host {
    return new Host(requests, this.#timeline, this.#setup.slotTaken, (host) => {
      const register: Partial<Register> = {
        create: (_, write) => this.#write(host, write),
        replace: (_, write) => this.#write(host, write),
        read: () => this.#command(host, 'read', () => this.#register.read(RECORD_ID)),
      };
      const gateway = this.#newGateway(host, register as Register, {
        ...WILLING,
        receive: ({ request }, answer) => {
          this.#send(request);
          const gate = { answered: () => answer(answered(request)), reset: () => answer(RESET) };
          host.gates.set(`${request} runs`, gate);
        },
      });
      gateway.connect = ({ request }, connected) => {
        const gate = { sent: () => connected(false), refused: () => connected(true) };
        host.gates.set(`${request} begins to send`, gate);
      };
      const { ledger } = gateway;
      const [start, restart] = [ledger.start.bind(ledger), ledger.restart.bind(ledger)];
      ledger.start = (execution) => start(this.#begins(host, execution));
      ledger.restart = (execution) => restart(this.#begins(host, execution));
      return gateway;
    });
  }

  /** Remembers whose token it is, and from when its fence counts. */
  #begins(host: Host, execution: Execution): Execution {
    const { token, requestId } = execution;
    const attempt = (this.#attempts.get(requestId) ?? 0) + 1;
    this.#attempts.set(requestId, attempt);
    this.#names.set(token, `${requestId}.${attempt}`);
    this.#begunMs.set(requestId, this.#timeline.nowMs);
    host.hasStarted = true;
    return execution;
  }

  #write(host: Host, write: Write): Promise<Reply> {
    const { record } = write;
    // Of what it writes, an owner remembers its start and its restart.
    if (record?.state === 'executing') host.seen.push({ words: 'writes', revision: record.revision });
    const seen = this.#held;
    const execute = async () => {
      const executed = this.#setup.broken.executes?.(write, this.#held, seen) ?? write;
      if (executed.kind === 'create') return await this.#register.create(RECORD_ID, executed);
      if (executed.voidToken) this.#void.add(executed.voidToken);
      return await this.#register.replace(RECORD_ID, executed);
    };
    const token = (write.kind === 'replace' && write.endLeaseOf) || record?.token;
    const what = write.kind === 'create' ? 'create' : (record?.state ?? 'nothing');
    const name = `${token ? this.#nameOf(token) : ''} ${what}`;
    return this.#command(host, name, execute, write);
  }

  /** @param write without it, the command reads */
  #command<T extends Reply | Seen | undefined>(
    host: Host,
    name: string,
    execute: () => Promise<T>,
    write?: Write,
  ): Promise<T> {
    return new Promise((resolve, reject) => {
      // One gateway may send the same command for two of its requests.
      const place = newName(host.gates, name);
      const done = async () => {
        try {
          const reply = await execute();
          this.#sees(host, reply);
          resolve(reply);
        } catch (error) {
          host.seen.push({ words: 'refused' });
          reject(error);
        }
      };
      const lost = () => {
        this.#left.lostCommands--;
        const label = newName(this.#underWay, `${nameOf(this.#hosts.indexOf(host))} ${place}`);
        // If the token is void, the store refuses it, and no caller waits for the answer.
        const happen = () => execute().catch(ignoreUnavailable);
        if (write) this.#underWay.set(label, { write, happen });
        reject(new StoreUnavailable('lost'));
      };
      host.gates.set(place, { done, lost });
    });
  }

  #sees(host: Host, reply: Reply | Seen | undefined): void {
    const isDone = reply && 'done' in reply && reply.done;
    const seen = reply && 'done' in reply ? !reply.done && reply.held : reply;
    if (!seen) {
      host.seen.push({ words: isDone ? 'done' : 'nothing' });
      return;
    }
    const words = `${this.#wordsOf(seen.record)} ${isYoung(seen)}`;
    host.seen.push({ words, revision: seen.record.revision });
    if (isYoung(seen)) host.sawInFlight = '';
  }
}

function newName(taken: ReadonlyMap<string, unknown>, name: string): string {
  let unique = name;
  while (taken.has(unique)) unique += ', again';
  return unique;
}

function ignoreUnavailable(error: unknown): void {
  if (!(error instanceof StoreUnavailable)) throw error;
}
