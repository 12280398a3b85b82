import { Slots } from '../../src/backend/slots.ts';
import { Desk } from '../../src/doubts/desk.ts';
import { type Lookup, Lookups } from '../../src/doubts/lookups.ts';
import type { Call, InDoubtPolicy, Result } from '../../src/idempotency/call.ts';
import { Engine } from '../../src/idempotency/engine.ts';
import { Commits } from '../../src/ledger/commits.ts';
import { Ledger } from '../../src/ledger/ledger.ts';
import { recordIdOf } from '../../src/ledger/record-id.ts';
import type { RecordId } from '../../src/lib/brands.ts';
import type { Exchange } from '../../src/lib/exchange.ts';
import type { TransactionAnswer } from '../../src/middleware/respond.ts';
import { HandlerTransaction } from '../../src/middleware/transactions/handler-transaction.ts';
import type { Register, Replace } from '../../src/store/register.ts';
import { ResponseCipher } from '../../src/store/response-cipher.ts';
import type { Emit } from '../../src/telemetry/emit.ts';
import { emitTo } from '../support/emit.ts';
import type { Backend, Sent } from './backend.ts';
import type { Checker } from './checker.ts';
import type { Dice } from './dice.ts';
import type { Process } from './machine.ts';
import type { Timeline } from './timeline.ts';
import { type Database, pay } from './transactions.ts';

export interface GatewayPlan {
  leaseMs: number;
  retentionMs: number;
  inDoubtRetentionMs: number;
  inDoubt: InDoubtPolicy;
  maxConnections: number;
  completeRetryMs: number;
  responseTimeoutMs: number;
  releaseAfterMs: number;
  /**
   * An embedded handler pays. Its merchant is answered after `responseTimeoutMs`, and the record stays executing until the handler
   * ends. A handler that never ends is given up after this time. Without it, the gateway sends to the backend.
   */
  abandonAfterMs: number | undefined;
  /** An embedded handler pays in a transaction of the application's database. */
  isTransactional?: boolean;
  /** The gateway connects at once, and is never refused. */
  connectsAtOnce?: boolean;
}

/** What goes wrong in a broken world. */
export interface Broken {
  /** Owners send without the last-moment fence and without asking. */
  noFence?: boolean;
  /** Changes what the engine hears of an exchange. */
  exchange?: (exchange: Exchange) => Exchange;
  Ledgers?: typeof Ledger;
  /** What it does with a write before it sends it. */
  write?: (write: Replace) => Replace;
  /** Lookups count the age of a doubt by the wall clock. */
  ageByWall?: boolean;
  statuses?: Call['statuses'];
}

export interface GatewayParts {
  process: Process;
  register: Register;
  backend: Pick<Backend, 'isCalm' | 'receive' | 'ask'>;
  /** Of an embedded handler that pays in transactions. */
  database?: Database;
  /** The name of its layer, and what its requests carry of it. */
  layer: string;
  hop: string;
  timeline: Timeline;
  dice: Dice;
  checker: Checker;
  excuse(key: string, why: string): void;
  step(where: string): void;
  say(what: string): void;
  event(name: string): void;
}

const CONNECT_TIMEOUT_MS = 2000;
export const QUEUE_TIMEOUT_MS = 2000;

/** A gateway: all that the product has between HTTP and the store. */
export class Gateway {
  readonly process: Process;
  readonly plan: GatewayPlan;
  readonly engine: Engine;
  readonly desk: Desk;
  readonly ledger: Ledger;
  readonly slots: Slots;
  readonly #lookups: Lookups | undefined;
  readonly #commits?: Commits | undefined;
  readonly #parts: GatewayParts;
  readonly #broken: Broken;
  /** Keys whose requests are about to be sent. */
  readonly #connecting = new Set<string>();
  /** For how long the machine's clocks had stood still when an owner last asked whether it is one. */
  readonly #askedStoodMs = new Map<RecordId, number>();
  #running = 0;
  #isClosing = false;

  constructor(plan: GatewayPlan, parts: GatewayParts, broken: Broken) {
    const { process, register, layer } = parts;
    const { clock, random, name: gatewayId } = process;
    this.process = process;
    this.plan = plan;
    this.#parts = parts;
    this.#broken = broken;
    const { leaseMs, retentionMs, inDoubtRetentionMs, inDoubt } = plan;
    const lifetimes = { leaseMs, retentionMs, inDoubtRetentionMs };
    const Ledgers = broken.Ledgers ?? Ledger;
    const { write: changed } = broken;
    if (changed) {
      const replace = register.replace.bind(register);
      register.replace = (id, write) => replace(id, changed(write));
    }
    this.ledger = new Ledgers(register, { gatewayId, lifetimes, clock, random });
    const { ledger } = this;
    if (parts.database) {
      const own = { gatewayId, lifetimes, clock, random, cipher: new ResponseCipher() };
      this.#commits = Commits.on(register, own);
    }
    const aliveForMs = ledger.aliveForMs.bind(ledger);
    ledger.aliveForMs = (owner) => {
      this.#askedStoodMs.set(owner.recordId, process.machine.stoodStillMs);
      return aliveForMs(owner);
    };
    if (inDoubt === 'lookup') this.#lookups = this.#newLookups();
    this.slots = new Slots(
      { maxConnections: plan.maxConnections, maxQueued: 2, queueTimeoutMs: QUEUE_TIMEOUT_MS },
      clock,
    );
    const options = { leaseMs, inDoubtRetentionMs, completeRetryMs: plan.completeRetryMs, maxWaiters: 3 };
    this.engine = new Engine(
      this.ledger,
      this.slots,
      options,
      engineEvents(parts),
      clock,
      this.#lookups,
      random,
    );
    this.desk = new Desk(this.ledger, { layer, leaseMs, maxStoredBytes: 1000, clock });
    void this.#lookups?.lookUpAbandoned(leaseMs);
  }

  #newLookups(): Lookups {
    const { process, backend, timeline, dice, layer, checker, event, say } = this.#parts;
    const { clock, random } = process;
    const lookup: Lookup = {
      ...{ releaseAfterMs: this.plan.releaseAfterMs, firstAfterMs: 1000, maxPauseMs: 6 * 3_600_000 },
      ask: ({ merchant, key }) =>
        new Promise((resolve) => {
          timeline.after(1 + dice.next() ** 4 * 4000, () => {
            const recordId = recordIdOf(layer, merchant, key);
            const answer = backend.ask(checker.executionOf(recordId, timeline.nowMs));
            checker.lookedUp(recordId, answer, timeline.nowMs);
            process.machine.run(process, () => resolve(answer));
          });
        }),
    };
    const byOperation = new Map(['withdraw', 'refund'].map((operation) => [operation, lookup]));
    const emit = emitTo({
      lookups: ({ result }) => event(`looked up ${result}`),
      resolved: ({ to }) => say(`a lookup has ${to} the key`),
    });
    const lookupClock = this.#broken.ageByWall ? { ...clock, monotonicMs: clock.wallMs } : clock;
    return new Lookups(this.ledger, layer, byOperation, emit, lookupClock, random);
  }

  /** @param hops the layers that it has passed, this one included. Default: this one */
  handle(call: Omit<Call, 'run' | 'inDoubt' | 'statuses'>, hops: string = this.#parts.hop): Promise<Result> {
    const { statuses = STATUSES } = this.#broken;
    const { inDoubt } = this.plan;
    const { recordId, key, requestId: request, fingerprint, operation } = call;
    const sent = { recordId, key, request, fingerprint, operation, hops };
    const { database } = this.#parts;
    if (this.plan.isTransactional && database)
      return this.#handleInTransaction({ ...call, statuses, inDoubt }, sent, database);
    return this.engine.handle({ ...call, statuses, inDoubt, run: (maySend) => this.#run(sent, maySend) });
  }

  /** The handler executes and completes the request in a transaction. */
  #handleInTransaction(call: Omit<Call, 'run'>, sent: Sent, database: Database): Promise<Result> {
    const { process, dice, checker, timeline, event } = this.#parts;
    const { clock, random } = process;
    const { responseTimeoutMs: timeoutMs, completeRetryMs } = this.plan;
    const { promise: ended, resolve: end } = Promise.withResolvers<Exchange>();
    let isTold = false;
    const handled = new HandlerTransaction({
      ...{ commits: this.#commits as Commits, store: this.ledger, emit: engineEvents(this.#parts) },
      ...{ clock, random, timeoutMs, completeRetryMs, maxStoredBytes: 1000, isTold: () => isTold },
      call: call as Call,
      recording: { endWith: end, responseOf: (status, _, body) => ({ status, headers: [], body }) },
    });
    const committed = ({ status, json }: TransactionAnswer) => {
      const response = { status, headers: [], body: Buffer.from(JSON.stringify(json)) };
      event('committed');
      checker.committed(sent, this.plan, response, timeline.nowMs);
      if (isTold) checker.toldEarly(sent, timeline.nowMs);
    };
    const tell = () => {
      isTold = true;
    };
    const run = () => {
      const cancel = clock.after(timeoutMs, () => handled.whenLate(tell));
      const nothing = () => end({ kind: 'not_sent', reason: 'the handler has committed nothing' });
      const parts = { database, clock, timeoutMs, dice, committed, event };
      void pay(handled, sent, parts).then(nothing, nothing);
      return ended.finally(cancel);
    };
    return this.engine.handle({ ...call, run, settle: (exchange) => handled.settle(exchange) });
  }

  /** Whether the clocks stood still, so that no fence here knows that the key may have another owner. */
  mayStillSend(key: string): boolean {
    const { machine } = this.process;
    return machine.hasStoppedClocks || (machine.stoodStillMs > 0 && this.#connecting.has(key));
  }

  /** A shutdown with a deadline. */
  async close(ms: number): Promise<void> {
    this.#isClosing = true;
    const closed = this.engine.close(ms).then(() => {
      // Later, a start that had no answer by the deadline may be taken back.
      const { pendingWrites } = this.engine;
      if (pendingWrites > 0) this.#break(`has closed with ${pendingWrites} pending writes`);
    });
    await Promise.all([closed, this.#lookups?.close()]);
  }

  #break(what: string): void {
    this.#parts.checker.violations.push(`${this.process.name} ${what}`);
  }

  async #run(sent: Sent, maySend: () => boolean): Promise<Exchange> {
    const { inDoubt, maxConnections } = this.plan;
    // Otherwise it may have asked meanwhile whether it still owns the key.
    if (this.#isClosing && inDoubt === 'hold') this.#break(`is closing and sends ${sent.request}`);
    if (++this.#running > maxConnections) this.#break(`sends ${sent.request} and has no slot for it`);
    try {
      return await this.#send(sent, maySend);
    } finally {
      this.#running--;
    }
  }

  /** Connects to the backend. */
  connect(_: Sent, connected: (isRefused: boolean) => void): void {
    const { timeline, dice } = this.#parts;
    const { connectsAtOnce } = this.plan;
    const connectMs = dice.next() ** 6 * CONNECT_TIMEOUT_MS;
    const isRefused = dice.next() < 0.03 && !connectsAtOnce;
    timeline.after(connectsAtOnce ? 1 : connectMs, () => connected(isRefused));
  }

  /** Connects, asks the fence, and sends. */
  #send(sent: Sent, maySend: () => boolean): Promise<Exchange> {
    const { process, backend, timeline, dice, step, checker, say } = this.#parts;
    const { exchange: changed = (exchange: Exchange) => exchange } = this.#broken;
    return new Promise((resolve, reject) => {
      const breaks = dice.next() < 0.01 && !backend.isCalm;
      const { machine } = process;
      const askedStoodMs = this.#askedStoodMs.get(sent.recordId) ?? Number.POSITIVE_INFINITY;
      this.#connecting.add(sent.key);
      step('connecting');
      this.connect(sent, (isRefused) => {
        step('connected');
        process.machine.run(process, () => {
          this.#connecting.delete(sent.key);
          if (isRefused) return resolve({ kind: 'not_sent', reason: 'refused' });
          if (!this.#broken.noFence && !maySend()) {
            this.#parts.event('fenced');
            return resolve({ kind: 'not_sent', reason: 'the lease may have lapsed' });
          }
          if (machine.stoodStillMs > askedStoodMs)
            this.#parts.excuse(sent.key, 'its gateway was frozen with its clocks right before it sent');
          say(`sends ${sent.request}`);
          checker.sending(sent, this.plan, timeline.nowMs);
          const { responseTimeoutMs, abandonAfterMs } = this.plan;
          const { promise: late, resolve: endLate } = Promise.withResolvers<Exchange>();
          let isOver = false;
          let wasTold = false;
          const cancels: (() => void)[] = [];
          const end = (exchange: Exchange) => {
            const isLate = abandonAfterMs !== undefined && wasTold && !isOver;
            const seen = changed(isLate ? Object.assign({ isLate }, exchange) : exchange);
            // A gateway hears nothing more of a request that it has given up.
            if (isOver && abandonAfterMs === undefined) return;
            const ended: Exchange = breaks ? { kind: 'unknown', reason: 'broken', timedOut: false } : seen;
            checker.ended(sent, ended, STATUSES, timeline.nowMs);
            if (isOver) endLate(ended);
            else if (breaks) reject(new Error('the gateway breaks'));
            else resolve(seen);
            isOver = true;
            for (const cancel of cancels) cancel();
          };
          const timeOut = (more: { late?: Promise<Exchange> }) =>
            end({ kind: 'unknown', reason: 'no answer in time', timedOut: true, ...more });
          if (abandonAfterMs === undefined)
            cancels.push(process.clock.after(responseTimeoutMs, () => timeOut({})));
          else {
            cancels.push(
              process.clock.after(responseTimeoutMs, () => {
                wasTold = true;
                checker.toldEarly(sent, timeline.nowMs);
              }),
              process.clock.after(abandonAfterMs, () => timeOut({ late })),
            );
          }
          backend.receive(sent, (exchange) => {
            step('backend answered');
            process.machine.run(process, () => end(exchange));
          });
          step('request sent');
        });
      });
    });
  }
}

export const STATUSES = { release: [401, 429], unknown: [502, 503, 504, 520, 522, 524] };

function engineEvents({ checker, event, say, timeline }: GatewayParts): Emit {
  return emitTo({
    in_doubt: ({ cause }) => event(`in doubt: ${cause}`),
    stale: ({ write }) => event(`stale ${write}`),
    late_answer: () => event('late answer'),
    sent_again: ({ recordId, requestId = '' }) => {
      event('sends again');
      say(`sends ${requestId} again`);
      checker.announced(recordId as RecordId, requestId, timeline.nowMs);
    },
    lease_lost: () => event('lease lost'),
    complete_late: ({ requestId = '' }) => {
      event('complete late');
      checker.answersLate(requestId);
    },
    complete_given_up: () => event('complete given up'),
  });
}
