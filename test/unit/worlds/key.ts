import type { Store } from '../../../src/ledger/ledger.ts';
import type { Fingerprint, Scope } from '../../../src/lib/brands.ts';
import type { Completion } from '../../../src/lib/exchange.ts';
import { systemRandom } from '../../../src/lib/random.ts';
import {
  type Execution,
  type PeekAnswer,
  type Resolution,
  type StartAnswer,
  StoreUnavailable,
} from '../../../src/store/contract.ts';
import type { MemoryRegister } from '../../support/memory-register.ts';
import { LEASE_MS, type World } from './world.ts';

/** What a gateway or an operator may do wrong. The world must then find a broken promise. */
export type Mistake =
  | 'sends without the fence'
  | 'sends after a start without an answer'
  | 'does not take back a start without an answer'
  | 'releases after an unknown end'
  | 'does not say that its merchant was told'
  | 'resolves whatever is there';

export interface Gateway {
  ledger: Store;
  leaseMs: number;
}

export interface Setting {
  world: World;
  register: MemoryRegister;
  gateways: readonly Gateway[];
  retentionMs: number;
  inDoubtRetentionMs: number;
  mistake: Mistake | undefined;
}

const FINGERPRINT = Buffer.alloc(32, 1) as Fingerprint;
const LONGEST_PAUSE_MS = 4 * LEASE_MS;

/** The backend's answer to one execution. Its status tells it from all others. */
const resultOf = (status: number): Completion => ({
  kind: 'response',
  response: { status, headers: [], body: Buffer.of() },
});

/**
 * One idempotency key, everybody who wants something of it, and what really happened. Only the backend's executions and what
 * merchants were answered decide whether a promise was broken.
 */
export class Key {
  readonly broken: string[] = [];
  readonly #setting: Setting;
  readonly #world: World;
  readonly #scope: Scope;
  readonly #retries: boolean;
  readonly #log: string[] = [];
  #status = 200;
  /** Since the record must last have expired. */
  #executions: { startedMs: number; status: number }[] = [];
  /** Somebody was told `in_doubt` after the last execution was sent. */
  #wasTold = false;
  #sentMs = Number.POSITIVE_INFINITY;
  #resolvedMs = Number.NEGATIVE_INFINITY;
  /** What somebody was answered, or the store has acknowledged. */
  #result: number | undefined;
  readonly #byOperators = new Set<number>();
  /** Results of a record that has lived longer than it had to. */
  readonly #expired = new Set<number>();
  /** Tokens of executions that may have left an open record, and of those that must not. */
  readonly #mayStayOpen = new Set<string>();
  readonly #takenBack = new Set<string>();
  readonly #resolutions = { atLeast: 0, atMost: 0 };

  constructor(setting: Setting, scope: Scope) {
    this.#setting = setting;
    this.#world = setting.world;
    this.#scope = scope;
    this.#retries = this.#world.chance(0.4);
    const { random } = this.#world;
    const times = (most: number, act: () => Promise<void>, atMs: () => number) => {
      for (let left = random.between(0, most); left > 0; left--)
        this.#world.after(atMs(), () => void this.#safely(act));
    };
    // Operators look at the same time, and decide some time later.
    const officeMs = (1 + random.next() * 8) * LEASE_MS;
    // Most requests come at first, some much later, around the ends of the lifetimes.
    times(
      6,
      () => this.#begin(false),
      () => random.next() * 6 * LEASE_MS,
    );
    times(
      5,
      () => this.#begin(false),
      () => random.next() * 50 * LEASE_MS,
    );
    times(
      5,
      () => this.#peek(),
      () => random.next() * 14 * LEASE_MS,
    );
    times(
      3,
      () => this.#operate(),
      () => officeMs + random.next() * LEASE_MS,
    );
  }

  /** When nothing happens any more. */
  async check(): Promise<void> {
    const { register } = this.#setting;
    const record = (await register.read(this.#scope))?.record;
    if (record && record.state !== 'completed') {
      const token = record.token.toString('hex');
      if (this.#takenBack.has(token)) this.#break(`${record.state}, and its start was taken back`);
      else if (!this.#mayStayOpen.has(token)) this.#break(`${record.state}, and its owner has ended`);
    }
    const { length } = await register.audit(this.#scope);
    const { atLeast, atMost } = this.#resolutions;
    if (length < atLeast || length > atMost)
      this.#break(`${length} resolutions, not ${atLeast} to ${atMost}`);
  }

  #break(what: string): void {
    this.broken.push([`${this.#scope.slice(-4)}: ${what}`, ...this.#log.slice(-25)].join('\n    '));
  }

  #say(text: string): void {
    this.#log.push(`${((this.#world.nowMs - 1_000_000) / LEASE_MS).toFixed(2)} ${text}`);
  }

  /** Nothing that the ledger throws may be anything else than {@link StoreUnavailable}. */
  async #safely(act: () => Promise<void>): Promise<void> {
    try {
      await act();
    } catch (error) {
      if (!(error instanceof StoreUnavailable)) this.#break(`${(error as Error).stack}`);
    }
  }

  /** A request starts an execution, or restarts one that is in doubt. */
  async #begin(again: boolean): Promise<void> {
    const gateway = this.#world.random.pick(this.#setting.gateways);
    const token = systemRandom.token();
    const execution: Execution = {
      ...{ scope: this.#scope, token, fingerprint: FINGERPRINT },
      ...{ merchant: 'm', operation: 'o', key: 'k', requestId: 'r' },
    };
    const name = `${again ? 'restart' : 'start'} ${token.toString('hex', 0, 3)}`;
    const startedMs = this.#world.nowMs;
    const { mistake } = this.#setting;
    const beginning = again ? gateway.ledger.restart(execution) : gateway.ledger.start(execution);
    const answer = await beginning.catch((error: unknown) => {
      if (error instanceof StoreUnavailable) return error;
      throw error;
    });
    if (answer instanceof StoreUnavailable) {
      this.#say(`${name} fails: ${answer.message}`);
      if (!answer.maybeWritten) return;
      if (mistake === 'sends after a start without an answer')
        return await this.#execute(gateway, execution, startedMs, again);
      if (mistake === 'does not take back a start without an answer') return;
      const taken = await this.#repeat(name, () => gateway.ledger.takeBack(execution), 0.01);
      (taken === undefined ? this.#mayStayOpen : this.#takenBack).add(token.toString('hex'));
      return;
    }
    const kind = typeof answer === 'string' ? answer : answer.kind;
    this.#say(`${name}: ${kind}`);
    if (kind === 'started' || kind === 'ok') return await this.#execute(gateway, execution, startedMs, again);
    if (typeof answer === 'string') return;
    this.#answered(answer, startedMs);
    if (kind === 'in_doubt' && this.#retries && !again && this.#world.chance(0.5)) await this.#begin(true);
  }

  async #execute(gateway: Gateway, execution: Execution, startedMs: number, again: boolean): Promise<void> {
    const world = this.#world;
    const { ledger, leaseMs } = gateway;
    const { mistake } = this.#setting;
    const token = execution.token.toString('hex');
    const name = token.slice(0, 6);
    const dies = (when: string, probability: number) => {
      const isDead = world.chance(probability);
      if (isDead) this.#say(`${name} dies ${when}`);
      if (isDead) this.#mayStayOpen.add(token);
      return isDead;
    };
    const release = async (why: string) => {
      this.#say(`${name} releases: ${why}`);
      const answer = await this.#repeat(`${name} releases`, () => ledger.release(execution), 0.02);
      // After a restart it is in doubt. A restart may own it now, and when that is taken back, it is in doubt as before.
      if (again || answer !== 'ok') this.#mayStayOpen.add(token);
    };
    const leaveInDoubt = async () => {
      this.#mayStayOpen.add(token);
      await ledger.markInDoubt(execution, 'cause').catch(() => {});
    };

    if (world.chance(0.3)) await world.sleep(world.random.next() ** 2 * LONGEST_PAUSE_MS);
    if (dies('before it sends', 0.1)) return;
    let fenceMs = startedMs + leaseMs;
    if (this.#retries) {
      // A machine may restart the key, so the owner reads its record before it sends.
      const askedMs = world.nowMs;
      const aliveForMs = await ledger.aliveForMs(execution).catch(() => 0);
      fenceMs = Math.min(fenceMs, askedMs + aliveForMs);
      if (world.chance(0.2)) await world.sleep(world.random.next() ** 2 * LONGEST_PAUSE_MS);
    }
    if (mistake !== 'sends without the fence' && world.nowMs >= fenceMs) return await release('the fence');
    const dice = world.random.next();
    if (dice < 0.15) return await release('not sent');
    if (dice < 0.2) return await leaveInDoubt();

    const status = this.#send(startedMs, again);
    this.#say(`${name} sends${again ? ' again' : ''}: ${status}`);
    if (dice < 0.3) {
      await world.sleep(world.random.next() * leaseMs);
      return await (mistake === 'releases after an unknown end' ? release('unknown') : leaveInDoubt());
    }
    const longestMs = world.chance(0.4) ? LONGEST_PAUSE_MS : 0.2 * LEASE_MS;
    const untilMs = world.nowMs + world.random.next() * longestMs;
    const isPaused = world.chance(0.3);
    let renewed = 'ok';
    while (world.nowMs < untilMs) {
      const leftMs = untilMs - world.nowMs;
      await world.sleep(isPaused ? leftMs : Math.min(leaseMs / 3, leftMs));
      if (world.nowMs >= untilMs || renewed === 'stale') continue;
      renewed = await ledger.renew(execution).catch(() => 'failed');
      this.#say(`${name} renews: ${renewed}`);
    }
    if (dies('after it has sent', 0.02)) return;
    // The merchant was answered before the response came.
    const wasTold = world.chance(0.15);
    this.#wasTold ||= wasTold;
    const says = wasTold && mistake !== 'does not say that its merchant was told';
    const answer = await this.#repeat(
      `${name} completes`,
      () => ledger.complete(execution, resultOf(status), says),
      0.02,
    );
    this.#say(`${name} completes ${status}${wasTold ? ', told' : ''}: ${answer}`);
    if (answer !== 'ok') this.#mayStayOpen.add(token);
    else if (this.#executions.some((one) => one.status === status)) this.#is(status, `${name} completed`);
  }

  async #peek(): Promise<void> {
    const beganMs = this.#world.nowMs;
    const { ledger } = this.#world.random.pick(this.#setting.gateways);
    this.#answered(await ledger.peek({ scope: this.#scope, fingerprint: FINGERPRINT }), beganMs);
  }

  /** An operator looks at the record and the backend's books, and later says what became of the execution. */
  async #operate(): Promise<void> {
    const { gateways, mistake } = this.#setting;
    const { ledger } = this.#world.random.pick(gateways);
    // Keys in doubt, and those whose owner is dead: it sends nothing any more.
    const { records } = await ledger.list({ inDoubt: true, limit: 100 });
    const record = records.find(({ scope }) => scope === this.#scope);
    if (!record || record.unreadable !== undefined) return;
    this.#forgetExpired();
    const executed = this.#executions.at(-1);
    const status = executed && this.#world.chance(0.5) ? executed.status : ++this.#status;
    const resolution: Resolution = executed
      ? { as: 'completed', completion: resultOf(status) }
      : { as: 'released' };
    if (this.#world.chance(0.5)) await this.#world.sleep(this.#world.random.next() * 8 * LEASE_MS);
    const there = mistake === 'resolves whatever is there' ? await ledger.get(this.#scope) : record;
    const beganMs = this.#world.nowMs;
    if (executed) this.#byOperators.add(status);
    this.#resolutions.atMost++;
    const note = { by: 'ada', reason: 'the books show it' };
    const answer = await ledger.resolve(this.#scope, (there ?? record).token, resolution, note);
    this.#say(`resolves as ${resolution.as} ${status}: ${answer}`);
    if (answer !== 'ok') this.#resolutions.atMost--;
    else this.#resolutions.atLeast++;
    if (answer !== 'ok' || !executed) return;
    this.#resolvedMs = beganMs;
    this.#is(status, 'an operator resolved');
  }

  /** The first byte leaves: the backend executes. */
  #send(startedMs: number, again: boolean): number {
    const hadSome = this.#executions.length > 0;
    this.#forgetExpired();
    if (this.#executions.length > 0 && !again) this.#break('executed twice');
    if (!hadSome || this.#executions.length === 0) this.#wasTold = false;
    this.#sentMs = this.#world.nowMs;
    this.#executions.push({ startedMs, status: ++this.#status });
    return this.#status;
  }

  #answered(answer: StartAnswer | PeekAnswer, beganMs: number): void {
    this.#forgetExpired();
    if (answer.kind === 'in_doubt') this.#told(beganMs);
    if (answer.kind !== 'completed') return;
    const { status } = answer.response;
    if (this.#executions.length === 0 && this.#expired.has(status)) return;
    if (!this.#executions.some((one) => one.status === status) && !this.#byOperators.has(status))
      this.#break(`a merchant got ${status}, which nobody has executed`);
    this.#is(status, 'a merchant got');
  }

  #told(beganMs: number): void {
    this.#forgetExpired();
    if (beganMs >= this.#sentMs) this.#wasTold = true;
  }

  #is(status: number, who: string): void {
    if (this.#result !== undefined && this.#result !== status)
      this.#break(`${who} ${status}, and ${this.#result} was the result before`);
    this.#result = status;
  }

  /** The merchants' promise ends with the record: a new key begins at the earliest end of its lifetime. */
  #forgetExpired(): void {
    const { retentionMs, inDoubtRetentionMs } = this.#setting;
    const startedMs = Math.min(...this.#executions.map((one) => one.startedMs));
    const endsMs = startedMs + (this.#wasTold ? inDoubtRetentionMs : retentionMs);
    if (this.#world.nowMs < Math.max(endsMs, this.#resolvedMs + inDoubtRetentionMs)) return;
    for (const { status } of this.#executions) this.#expired.add(status);
    for (const status of this.#byOperators) this.#expired.add(status);
    this.#executions = [];
    this.#result = undefined;
    this.#wasTold = false;
    this.#sentMs = Number.POSITIVE_INFINITY;
  }

  /** Until the store answers. Undefined: the process died before. */
  async #repeat<T>(name: string, write: () => Promise<T>, deaths: number): Promise<T | undefined> {
    for (let pauseMs = 1000; !this.#world.chance(deaths); pauseMs = Math.min(pauseMs * 1.5, LEASE_MS / 4)) {
      try {
        return await write();
      } catch (error) {
        if (!(error instanceof StoreUnavailable)) throw error;
        await this.#world.sleep(pauseMs * this.#world.random.next());
      }
    }
    this.#say(`${name}, and dies`);
    return undefined;
  }
}
