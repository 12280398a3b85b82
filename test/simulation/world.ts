import type { Result } from '../../src/idempotency/call.ts';
import type { Fingerprint, RecordId } from '../../src/lib/brands.ts';
import type { Exchange } from '../../src/lib/exchange.ts';
import { hopOf } from '../../src/requests/hops.ts';
import type { MemoryRegister } from '../support/memory-register.ts';
import { Backend } from './backend.ts';
import { Checker } from './checker.ts';
import { Copier } from './copier.ts';
import { diceOf } from './dice.ts';
import { type Broken, Gateway } from './gateway.ts';
import { FINGERPRINTS, KEYS, keyNumber } from './keys.ts';
import { type Host, Layer } from './layer.ts';
import { Machine, Process } from './machine.ts';
import { operate } from './operators.ts';
import type { CopyPlan, FaultPlan, OperatorPlan, Plan, RequestPlan } from './plan.ts';
import { NetworkRegister, StoreServers } from './store.ts';
import { Timeline } from './timeline.ts';

const CLIENT_TIMEOUT_MS = 45_000;
/** True time at the beginning, so that wall clocks show a date of today. */
const BEGIN_MS = 1_800_000_000_000;

/** What a history says when its faults have stopped. */
export const CONVERGES = 'nothing breaks any more';

/** What is said of the second of two layers. */
const BEHIND = 'behind: ';

/** What is wrong in a world on purpose. */
export interface Mistakes extends Broken {
  Registers?: typeof MemoryRegister;
  /** Operators resolve the execution that is there, and not the one that they have looked at. */
  anyExecution?: boolean;
}

export interface Outcome {
  violations: string[];
  excused: readonly [why: string, times: number][];
  /** Requests with a key that merchants sent, retries included. */
  payouts: number;
  executions: number;
  /** Simulated, in milliseconds. */
  tookMs: number;
}

/** What histories have reached: for each step, which fault met it, and how often. */
export type Reached = Map<string, number>;

/** One history. */
export class World {
  readonly plan: Plan;
  readonly timeline = new Timeline();
  readonly backend: Backend;
  readonly store: StoreServers;
  /** The layer that merchants ask. */
  readonly front: Layer;
  /** A layer between that one and the backend. */
  readonly inner: Layer | undefined;
  readonly hosts: Host[] = [];
  readonly copier: Copier | undefined;
  /** The store to which a copy copies. */
  readonly destination: StoreServers;
  readonly mistakes: Mistakes;
  readonly #processes: Process[] = [];
  readonly #reached: Reached | undefined;
  readonly #log: string[] | undefined;
  readonly #faults: FaultPlan[];
  #steps = 0;
  #payouts = 0;
  /** Merchants with a final answer. */
  readonly #finals = new Set<string>();

  constructor(plan: Plan, mistakes: Mistakes = {}, reached?: Reached, log?: string[]) {
    this.plan = plan;
    this.mistakes = mistakes;
    this.#reached = reached;
    this.#log = log;
    this.#faults = [...plan.faults];
    this.timeline.nowMs = BEGIN_MS;
    const { seed, layers } = plan;
    this.backend = new Backend(plan.backend, this.timeline, diceOf(seed, 'backend'));
    this.backend.onExecuted = (sent, execution) => {
      this.say(`backend executes ${sent.request}: ${execution.result}`);
      const number = keyNumber(sent.key);
      for (const { checker, recordIds } of this.layers)
        checker.executed(recordIds[number] as RecordId, sent.request, execution, this.nowMs);
    };
    const { Registers } = mistakes;
    this.store = new StoreServers(
      this.timeline,
      plan.store,
      diceOf(seed, 'store'),
      '0'.repeat(32),
      Registers,
    );
    const alone = { replicas: 0, acknowledgedBy: 0, lockNodes: false };
    this.destination = new StoreServers(
      this.timeline,
      alone,
      diceOf(seed, 'destination'),
      '1'.repeat(32),
      Registers,
    );
    this.copier = plan.copy && this.#newCopier(plan.copy);
    this.front = this.#newLayer('gateway', this.store, '');
    if (layers) {
      const own = new StoreServers(this.timeline, plan.store, diceOf(seed, 'inner store'), '2'.repeat(32));
      this.inner = this.#newLayer(layers.name, layers.haveOneStore ? this.store : own, BEHIND);
    }
    for (const [index, { clocks, isInner }] of plan.gateways.entries()) {
      const machine = new Machine(this.timeline, clocks, diceOf(seed, `machine ${index}`));
      const network = { faults: 0, requestsLostUntilMs: 0, repliesLostUntilMs: 0 };
      const layer = (isInner && this.inner) || this.front;
      const host = { machine, layer, gateway: undefined, network, starts: 0, store: layer.serving };
      this.hosts.push(host);
      layer.hosts.push(host);
      this.#start(index);
    }
  }

  #newLayer(name: string, store: StoreServers, where: string): Layer {
    const { plan, timeline } = this;
    const checker = new Checker({
      slackMs: 1000,
      maySendAgain: plan.inDoubt === 'retry',
      isNeverInDoubt: this.#isNeverInDoubt,
      isQuiet:
        plan.faults.length === 0 &&
        !plan.copy &&
        plan.gateways.every(({ networkFaults }) => networkFaults === 0),
    });
    return new Layer({
      ...{ name, checker, timeline, dice: diceOf(plan.seed, 'between layers'), front: this.front },
      isCalm: () => this.backend.isCalm,
      say: (what) => this.say(where + what),
      event: (what) => this.#reach(what),
      serving: () => (store === this.store && this.copier?.isOpened ? this.destination : store),
    });
  }

  /** From the merchants to the backend. */
  get layers(): Layer[] {
    return this.inner ? [this.front, this.inner] : [this.front];
  }

  /** Every request runs in a transaction of the application's database. */
  get #isNeverInDoubt(): boolean {
    return this.plan.gateways.every(({ plan }) => plan.isTransactional);
  }

  get nowMs(): number {
    return this.timeline.nowMs;
  }

  say(what: string): void {
    this.#log?.push(`${((this.nowMs - BEGIN_MS) / 1000).toFixed(3).padStart(10)} ${what}`);
  }

  async run(): Promise<Outcome> {
    const { plan, timeline } = this;
    for (const [number, request] of plan.requests.entries())
      timeline.after(request.atMs, () => this.#send(request, `${KEYS[request.key]}/${number}`, 0));
    for (const operator of plan.operators) timeline.after(operator.atMs, () => void this.#operate(operator));
    this.#planCopy();
    await timeline.run();
    for (const layer of this.layers) await this.#checkEnd(layer);
    await this.#converge();
    return this.outcome();
  }

  /** @param broken what is wrong besides what the checker has found */
  outcome(broken: readonly string[] = []): Outcome {
    const behind = (this.inner?.checker.violations ?? []).map((what) => BEHIND + what);
    const violations = [...this.front.checker.violations, ...behind];
    const excused = this.layers.flatMap(({ checker }) => [...checker.excused]);
    const executions = [...this.backend.executions.values()].reduce((all, { length }) => all + length, 0);
    return {
      ...{ violations: [...violations, ...broken], excused, payouts: this.#payouts, executions },
      tookMs: this.nowMs - BEGIN_MS,
    };
  }

  #operate(operator: OperatorPlan): Promise<void> {
    const { backend, inner, timeline, plan, mistakes } = this;
    const layer = (operator.isInner && inner) || this.front;
    const office = {
      ...{ layer, timeline },
      ...{ areCareless: plan.carelessOperators, anyExecution: mistakes.anyExecution },
      mayBeSent: (key: string) =>
        backend.isUnderWay(key) ||
        inner?.isUnderWay(key) ||
        this.hosts.some(({ gateway }) => gateway?.mayStillSend(key)),
      say: (what: string) => this.say(what),
      event: (name: string) => this.#reach(name),
    };
    return operate(office, operator);
  }

  #newCopier(plan: CopyPlan): Copier {
    const { timeline, store: from, destination: to } = this;
    return new Copier(plan, {
      ...{ timeline, seed: this.plan.seed, from, to },
      step: (process, where) => this.#step(process, where),
      say: (what) => this.say(what),
      started: (process) => this.#processes.push(process),
      opened: () => this.#moveAll(to, plan.moveWithinMs),
      undone: () => this.#moveAll(from, plan.moveWithinMs),
    });
  }

  #planCopy(): void {
    const { copier, timeline, plan } = this;
    if (!copier || !plan.copy) return;
    const { atMs, twice, againAfterMs, earlyAfterMs } = plan.copy;
    copier.begin(atMs);
    if (twice) copier.begin(atMs + againAfterMs);
    if (earlyAfterMs === undefined) return;
    timeline.after(atMs + earlyAfterMs, () => {
      void copier.hasBegun().then((hasBegun) => hasBegun && this.#move(0, this.destination));
    });
  }

  #moveAll(store: StoreServers, withinMs: number): void {
    for (const index of this.hosts.keys())
      this.timeline.after((withinMs * (index + 1)) / this.hosts.length, () => this.#move(index, store));
  }

  /** Starts a gateway on this store, also one that runs there already: it may have seen the store closed. */
  #move(index: number, store: StoreServers): void {
    const host = this.hosts[index] as Host;
    host.store = store;
    // One that is dead already is started there, too.
    if (host.gateway) this.#kill(host.gateway.process, 100);
  }

  #start(index: number): void {
    const host = this.hosts[index] as Host;
    const { plan, clocks: _, networkFaults } = this.plan.gateways[index] as Plan['gateways'][number];
    const name = `gateway ${index}.${host.starts++}`;
    const process = new Process(host.machine, name, this.timeline, this.plan.seed);
    const dice = diceOf(this.plan.seed, name);
    host.network.faults = networkFaults;
    const step = (where: string) => this.#step(process, where);
    host.store.join(process);
    const register = new NetworkRegister(process, host.store, host.network, this.timeline, dice, step);
    const parts = {
      ...{ process, register, timeline: this.timeline, dice, step, checker: host.layer.checker },
      layer: host.layer.name,
      database: { transactions: register.transactions, books: this.backend },
      excuse: (key: string, why: string) => host.layer.excuse(key, why),
      hop: hopOf(host.layer.name, host.store.id) as string,
      backend: this.inner && host.layer === this.front ? this.#behind(this.inner) : this.backend,
      say: (what: string) => this.say(`${name}: ${what}`),
      event: (what: string) => this.#reach(what),
    };
    host.gateway = new Gateway(plan, parts, this.mistakes);
    this.#processes.push(process);
    this.say(`${name} starts`);
  }

  /** A gateway takes a step. What is planned for this step breaks now. */
  #step(process: Process, where: string): void {
    this.#steps++;
    if (this.#log) this.say(`${process.name}: ${where}`);
    for (const fault of this.#faults.filter(({ step }) => step === this.#steps || step === where)) {
      this.#faults.splice(this.#faults.indexOf(fault), 1);
      this.#break(process, where, fault);
    }
  }

  #break(process: Process, where: string, fault: FaultPlan): void {
    if (process.isDead) return;
    const { machine, name } = process;
    const host = this.hosts.find((one) => one.machine === machine);
    const network = host?.network ?? this.copier?.network;
    const store = host?.store ?? this.store;
    if (!network) return;
    this.#reach(`${where} × ${fault.kind}${fault.kind === 'freeze' ? `, ${fault.clocks}` : ''}`);
    this.say(`${name}: ${where}, and ${JSON.stringify(fault)}`);
    process.wasDisturbed = true;
    switch (fault.kind) {
      case 'freeze':
        machine.freeze(fault.ms, fault.clocks);
        break;
      case 'kill':
        this.#kill(process, fault.restartAfterMs);
        break;
      case 'shutdown':
        machine.run(process, () => {
          void host?.gateway?.close(fault.deadlineMs).then(() => this.#kill(process, fault.restartAfterMs));
        });
        break;
      case 'partition': {
        const untilMs = this.nowMs + fault.ms;
        if (fault.direction !== 'replies') network.requestsLostUntilMs = untilMs;
        if (fault.direction !== 'requests') network.repliesLostUntilMs = untilMs;
        break;
      }
      case 'full':
        store.master.full = { ...fault, untilMs: this.nowMs + fault.ms };
        break;
      case 'backup':
        store.backUp();
        break;
      case 'restore':
        store.restore();
        break;
      case 'failover':
        store.failOver(this.#processes.filter(({ isDead }) => !isDead));
        break;
      case 'clock steps':
        machine.stepWall(fault.ms);
    }
  }

  #kill(process: Process, restartAfterMs: number): void {
    if (process.isDead) return;
    process.isDead = true;
    this.say(`${process.name} is dead`);
    const index = this.hosts.findIndex(({ gateway }) => gateway?.process === process);
    if (index < 0) this.copier?.begin(restartAfterMs);
    else this.timeline.after(restartAfterMs, () => this.#start(index));
  }

  #reach(what: string): void {
    this.#reached?.set(what, (this.#reached.get(what) ?? 0) + 1);
  }

  /** What gateways of the first layer take for the backend. */
  #behind(inner: Layer): Pick<Backend, 'isCalm' | 'receive' | 'ask'> {
    const { backend } = this;
    return {
      get isCalm() {
        return backend.isCalm;
      },
      receive: (sent, answer) => inner.receive(sent, answer),
      ask: (execution) => backend.ask(execution),
    };
  }

  /** A merchant sends a request, and again while it has no final answer. */
  #send(plan: RequestPlan, name: string, tries: number): void {
    const again = () => {
      const pauseMs = 1000 * 2 ** Math.min(tries, 3);
      if (tries < plan.retries) this.timeline.after(pauseMs, () => this.#send(plan, name, tries + 1));
    };
    if (this.front.gatewayAt(0)) this.#payouts++;
    const question = {
      ...{ request: `${name}.${tries}`, key: KEYS[plan.key] as string, waitMs: plan.waitMs },
      fingerprint: FINGERPRINTS[Number(plan.isOther)] as Fingerprint,
      operation: plan.isRefund ? 'refund' : 'withdraw',
      gateway: plan.gateway + tries,
      leavesAfterMs: plan.leavesAfterMs ?? CLIENT_TIMEOUT_MS,
    };
    this.front.ask(question, (result) => {
      if (!result || !isFinal(result)) again();
      else this.#finals.add(name);
    });
  }

  /** When nothing happens any more: nothing is held or open that nobody will end. */
  async #checkEnd(layer: Layer): Promise<void> {
    const { checker, hosts, recordIds, serving, handlers } = layer;
    const { violations } = checker;
    for (const { gateway } of hosts) {
      if (!gateway || gateway.process.isDead) continue;
      const { engine, slots, process } = gateway;
      const left = {
        executing: engine.executing,
        pendingWrites: engine.pendingWrites,
        waiting: engine.waiting,
      };
      for (const [what, number] of Object.entries({ ...left, slots: slots.inUse, queued: slots.queued }))
        if (number !== 0) violations.push(`${process.name} has ${what} ${number} at the end`);
    }
    for (const recordId of recordIds) {
      const record = (await serving.master.register.read(recordId))?.record;
      if (!record || record.state === 'completed') continue;
      const { requestId } = record;
      if (this.#isNeverInDoubt) violations.push(`${requestId} left the key ${record.state}`);
      const owner = handlers.get(requestId);
      // Under `retry`, who restarted a record may have died, and the first owner's release may have come during a restart that was
      // taken back. The next retry sends the request.
      const isExplained = this.plan.inDoubt === 'retry' || checker.mayBeOpen(recordId) || owner?.isDead;
      const isAlive = owner && !owner.isDead && !owner.wasDisturbed && !this.copier;
      if (isAlive && this.plan.inDoubt !== 'retry' && checker.isKnown(recordId, requestId))
        violations.push(`the key is ${record.state}, and the gateway of ${requestId} knows its result`);
      const isWhole = hosts.every(({ starts }) => starts === 1);
      if (record.restarted && isWhole && !checker.hasAnnounced(recordId))
        violations.push(`the key was restarted, and nobody has sent it again`);
      if (!isExplained) violations.push(`${record.requestId} left the key ${record.state}, and was not sent`);
    }
  }

  /** Without faults, operators can resolve every key that is left, and every key then has a final answer. */
  async #converge(): Promise<void> {
    const { timeline, front, plan } = this;
    this.say(CONVERGES);
    this.#faults.length = 0;
    this.backend.calmDown();
    for (const { serving } of this.layers) serving.master.full = undefined;
    for (const { network } of this.hosts)
      Object.assign(network, { faults: 0, requestsLostUntilMs: 0, repliesLostUntilMs: 0 });
    const keys = new Set(plan.requests.map(({ key }) => key));
    const calm = {
      atMs: 0,
      gateway: 0,
      waitMs: 0,
      leavesAfterMs: undefined,
      retries: 6,
      isOther: false,
      isRefund: false,
    };
    const operator = { atMs: 0, gateway: 0, actsAfterMs: 0, times: 1, isBrief: false };
    // A renewal that was executed late has taken the lease once more.
    const leaseMs = Math.max(...plan.gateways.map((one) => one.plan.leaseMs));
    // The first layer sends a key only if the one behind it does.
    for (const layer of this.layers.toReversed()) {
      const isInner = layer !== front;
      for (const key of keys)
        timeline.after(2 * leaseMs, () => void this.#operate({ ...operator, key, isInner }));
      await timeline.run();
      for (const key of keys) {
        const record = (await layer.serving.master.register.read(layer.recordIds[key] as RecordId))?.record;
        if (record && record.state !== 'completed')
          layer.checker.violations.push(`an operator cannot resolve ${KEYS[key]}, which is ${record.state}`);
      }
    }
    for (const key of keys) this.#send({ ...calm, key }, `${KEYS[key]}/last`, 0);
    await timeline.run();
    for (const key of keys)
      if (!this.#finals.has(`${KEYS[key]}/last`))
        front.checker.violations.push(`${KEYS[key]} has no final answer`);
  }
}

/** The second layer says that the key belongs to another request. */
const isMismatch = (exchange: Exchange): boolean =>
  exchange.kind === 'complete' && exchange.response.body.includes('problem:idempotency_key_reused');

function isFinal(result: Result): boolean {
  if (result.kind === 'executed') return result.decision === 'complete' || isMismatch(result.exchange);
  return result.kind === 'replayed' || result.kind === 'tombstone' || result.kind === 'mismatch';
}
