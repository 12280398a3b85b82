import type { Result } from '../../src/idempotency/call.ts';
import type { Fingerprint, Scope } from '../../src/lib/brands.ts';
import type { MemoryRegister } from '../support/memory-register.ts';
import { Backend } from './backend.ts';
import { Checker } from './checker.ts';
import { Copier } from './copier.ts';
import { diceOf } from './dice.ts';
import { type Broken, Gateway } from './gateway.ts';
import { FINGERPRINTS, KEYS, SCOPES } from './keys.ts';
import { Machine, Process } from './machine.ts';
import { operate } from './operators.ts';
import {
  type CopyPlan,
  type FaultPlan,
  IN_DOUBT_RETENTION_MS,
  type OperatorPlan,
  type Plan,
  RETENTION_MS,
  type RequestPlan,
} from './plan.ts';
import { type Network, NetworkRegister, StoreServers } from './store.ts';
import { Timeline } from './timeline.ts';

const CLIENT_TIMEOUT_MS = 45_000;
/** True time at the beginning, so that wall clocks show a date of today. */
const BEGIN_MS = 1_800_000_000_000;

/** What is wrong in a world on purpose. */
export interface Mistakes extends Broken {
  Registers?: typeof MemoryRegister;
  /** Operators resolve the execution that is there, and not the one that they have looked at. */
  anyExecution?: boolean;
}

interface Host {
  machine: Machine;
  gateway: Gateway | undefined;
  network: Network;
  starts: number;
  /** Where its next process is started. */
  store: StoreServers;
}

export interface Outcome {
  violations: string[];
  excused: ReadonlyMap<string, number>;
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
  readonly checker: Checker;
  readonly backend: Backend;
  readonly store: StoreServers;
  readonly hosts: Host[] = [];
  readonly copier: Copier | undefined;
  /** Of the copy. */
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
  /** Who got each request. */
  readonly #handlers = new Map<string, Process>();

  constructor(plan: Plan, mistakes: Mistakes = {}, reached?: Reached, log?: string[]) {
    this.plan = plan;
    this.mistakes = mistakes;
    this.#reached = reached;
    this.#log = log;
    this.#faults = [...plan.faults];
    this.timeline.nowMs = BEGIN_MS;
    this.checker = new Checker({
      retentionMs: RETENTION_MS,
      inDoubtRetentionMs: IN_DOUBT_RETENTION_MS,
      slackMs: 1000,
      maySendAgain: plan.inDoubt === 'retry',
      isQuiet:
        plan.faults.length === 0 &&
        !plan.copy &&
        plan.gateways.every(({ networkFaults }) => networkFaults === 0),
    });
    const { seed } = plan;
    this.backend = new Backend(plan.backend, this.timeline, diceOf(seed, 'backend'));
    this.backend.onExecuted = (sent, execution) => {
      this.say(`backend executes ${sent.request}: ${execution.result}`);
      this.checker.executed(sent, execution, this.timeline.nowMs);
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
    this.destination = new StoreServers(this.timeline, alone, diceOf(seed, 'destination'), '1'.repeat(32));
    this.copier = plan.copy && this.#newCopier(plan.copy);
    for (const [index, { clocks }] of plan.gateways.entries()) {
      const machine = new Machine(this.timeline, clocks, diceOf(seed, `machine ${index}`));
      const network = { faults: 0, requestsLostUntilMs: 0, repliesLostUntilMs: 0 };
      this.hosts.push({ machine, gateway: undefined, network, starts: 0, store: this.store });
      this.#start(index);
    }
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
    await this.#checkEnd();
    await this.#converge();
    return this.outcome();
  }

  /** @param broken what is wrong besides what the checker has found */
  outcome(broken: readonly string[] = []): Outcome {
    const { violations, excused } = this.checker;
    const executions = [...this.backend.executions.values()].reduce((all, { length }) => all + length, 0);
    return {
      ...{ violations: [...violations, ...broken], excused, payouts: this.#payouts, executions },
      tookMs: this.nowMs - BEGIN_MS,
    };
  }

  /** The gateway of this number, or the next one that runs. */
  gatewayAt(number: number): Gateway | undefined {
    for (let turn = 0; turn < this.hosts.length; turn++) {
      const gateway = this.hosts[(number + turn) % this.hosts.length]?.gateway;
      if (gateway && !gateway.process.isDead) return gateway;
    }
    return undefined;
  }

  #operate(operator: OperatorPlan): Promise<void> {
    const { backend, checker, timeline, plan, mistakes } = this;
    const office = {
      ...{ backend, checker, timeline },
      ...{ areCareless: plan.carelessOperators, anyExecution: mistakes.anyExecution },
      gateways: () => this.hosts.flatMap(({ gateway }) => gateway ?? []),
      gatewayAt: (number: number) => this.gatewayAt(number),
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
      void copier.isReceiving().then((isReceiving) => isReceiving && this.#move(0, this.destination));
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
      ...{ process, register, backend: this.backend, timeline: this.timeline, dice, step },
      checker: this.checker,
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
    for (const fault of this.#faults) if (fault.step === this.#steps) this.#break(process, where, fault);
  }

  #break(process: Process, where: string, fault: FaultPlan): void {
    if (process.isDead) return;
    const { machine, name } = process;
    const host = this.hosts.find((one) => one.machine === machine);
    const network = host?.network ?? this.copier?.network;
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
      case 'failover':
        this.store.failOver(this.#processes.filter(({ isDead }) => !isDead));
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

  /** A merchant sends a request, and again while it has no final answer. */
  #send(plan: RequestPlan, name: string, tries: number): void {
    const gateway = this.gatewayAt(plan.gateway + tries);
    const again = () => {
      const pauseMs = 1000 * 2 ** Math.min(tries, 3);
      if (tries < plan.retries) this.timeline.after(pauseMs, () => this.#send(plan, name, tries + 1));
    };
    if (!gateway) {
      again();
      return;
    }
    const { process } = gateway;
    const store = this.hosts.find((host) => host.gateway === gateway)?.store;
    const request = `${name}.${tries}`;
    const gone = new AbortController();
    let isOver = false;
    const end = (isFinal: boolean) => {
      if (isOver) return;
      isOver = true;
      cancel();
      if (!isFinal) again();
    };
    const cancel = this.timeline.after(plan.leavesAfterMs ?? CLIENT_TIMEOUT_MS, () => {
      this.say(`${request} leaves`);
      process.machine.run(process, () => gone.abort());
      end(false);
    });
    this.#payouts++;
    this.#handlers.set(request, process);
    const operation = plan.isRefund ? 'refund' : 'withdraw';
    this.checker.requested(request, { atMs: this.nowMs, isOther: plan.isOther, operation });
    this.say(`${request} → ${process.name}`);
    const [scope, key] = [SCOPES[plan.key] as Scope, KEYS[plan.key] as string];
    const fingerprint = FINGERPRINTS[Number(plan.isOther)] as Fingerprint;
    const call = { scope, key, fingerprint, merchant: 'M-1', operation, requestId: request };
    process.machine.run(process, () => {
      const handled = gateway.handle({ ...call, waitMs: plan.waitMs, gone: gone.signal });
      void handled.then((result) => {
        if (process.isDead || isOver) return;
        this.#reach(`told ${result.kind}`);
        this.say(`${request} ← ${describe(result)}`);
        // A gateway that has not been moved yet answers from a store that does not serve any more.
        const isStale = store !== this.#serving && result.kind === 'in_doubt';
        if (result.kind !== 'mismatch' && !isStale) this.checker.told(scope, request, result, this.nowMs);
        if (isFinal(result)) this.#finals.add(name);
        end(isFinal(result));
      });
    });
  }

  /** The one that serves. */
  get #serving(): StoreServers {
    return this.copier?.isOpened ? this.destination : this.store;
  }

  /** When nothing happens any more: nothing is held or open that nobody will end. */
  async #checkEnd(): Promise<void> {
    const { violations } = this.checker;
    for (const { gateway } of this.hosts) {
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
    for (const scope of SCOPES) {
      const record = (await this.#serving.master.register.read(scope))?.record;
      if (!record || record.state === 'completed') continue;
      const { requestId } = record;
      // Under `retry`, who restarted a record may have died, and the first owner's release may have come during a restart that was
      // taken back. The next retry sends the request.
      const isExplained =
        this.plan.inDoubt === 'retry' ||
        this.checker.mayBeOpen(scope) ||
        this.#handlers.get(requestId)?.isDead;
      const owner = this.#handlers.get(requestId);
      const isAlive = owner && !owner.isDead && !owner.wasDisturbed && !this.copier;
      if (isAlive && this.plan.inDoubt !== 'retry' && this.checker.isKnown(scope, requestId))
        violations.push(`the key is ${record.state}, and the gateway of ${requestId} knows its result`);
      if (!isExplained) violations.push(`${record.requestId} left the key ${record.state}, and was not sent`);
    }
  }

  /** Without faults, operators can resolve every key that is left, and every key then has a final answer. */
  async #converge(): Promise<void> {
    const { timeline, checker, plan } = this;
    this.#faults.length = 0;
    this.backend.calmDown();
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
    for (const key of keys) timeline.after(2 * leaseMs, () => void this.#operate({ ...operator, key }));
    await timeline.run();
    for (const key of keys) {
      const record = (await this.#serving.master.register.read(SCOPES[key] as Scope))?.record;
      if (record && record.state !== 'completed')
        checker.violations.push(`an operator cannot resolve ${KEYS[key]}, which is ${record.state}`);
      this.#send({ ...calm, key }, `${KEYS[key]}/last`, 0);
    }
    await timeline.run();
    for (const key of keys)
      if (!this.#finals.has(`${KEYS[key]}/last`)) checker.violations.push(`${KEYS[key]} has no final answer`);
  }
}

function isFinal(result: Result): boolean {
  if (result.kind === 'executed') return result.decision === 'complete';
  return result.kind === 'replayed' || result.kind === 'tombstone' || result.kind === 'mismatch';
}

function describe(result: Result): string {
  if (result.kind === 'replayed') return `replayed ${result.response.status} ${result.response.body}`;
  if (result.kind !== 'executed') return result.kind;
  const { exchange, decision, stored } = result;
  const what =
    exchange.kind === 'complete' ? `${exchange.response.status} ${exchange.response.body}` : exchange.kind;
  return `executed ${what}, ${decision}${stored ? ', stored' : ''}`;
}
