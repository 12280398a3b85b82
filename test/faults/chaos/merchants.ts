import { setTimeout as sleep } from 'node:timers/promises';
import { type CallOptions, Client, type Payout } from './client.ts';
import type { Ended, Event, History } from './history.ts';
import type { Random } from './random.ts';

/** A gateway to which merchants send their payouts. */
export interface Target {
  number: number;
  life: number;
  port: number;
  /** How long it keeps completed records. */
  retentionMs: number;
}

export interface MerchantOptions {
  /** New keys a second. */
  ratePerS: number;
  /** The most keys that may be without an answer; above it, no new keys are started. */
  maxOpen: number;
  callTimeoutMs: number;
}

type As = Extract<Event, { event: 'call' }>['as'];

/** One key and what its merchant knows about its outcome. */
export interface Life {
  payout: Payout;
  /** The last answer that says what became of the payout. */
  known: 'nothing' | 'result' | 'in_doubt';
  /** The merchant sends no more requests with this key. */
  isOver: boolean;
  /** From then on the completed record may have expired (`performance.now()`). */
  newFromMs: number;
}

const SECRETS: Record<string, readonly string[]> = {
  // Two secret keys, used in turn, as if a rotation happened between the retries.
  'M-ALPHA': ['sk_sandbox_alpha', 'sk_sandbox_alpha_2'],
  'M-BRAVO': ['sk_sandbox_bravo'],
  'M-CHARLIE': ['sk_sandbox_charlie'],
};
const MERCHANTS = Object.keys(SECRETS);

/** The retry delays that the interface recommends. */
const RETRY_AFTER_MS = [1000, 2000, 4000];

/** Faults of the backend, each for one request; [how many in a thousand keys, the switch]. */
const FAULTS: readonly (readonly [number, string])[] = [
  [3, 'execute-then-reset'],
  [1, 'execute-then-hang'],
  [3, 'refuse'],
  [3, 'reset-before-execute'],
  [2, 'truncate'],
  [2, 'truncate-chunked'],
  [2, 'truncate-unframed'],
  [2, 'garbage'],
  [8, 'delay=2000'],
  [10, 'delay=100'],
  [5, '500-after'],
  [5, '503-after'],
  [5, '500-before'],
  [10, '429-before'],
  [2, 'status=502'],
  [2, 'status=504'],
];
/** Faults after which only the backend knows whether it executed the payout. */
export const LOSSY_FAULTS = new Set([
  'execute-then-reset',
  'execute-then-hang',
  'refuse',
  'reset-before-execute',
  'truncate',
  'truncate-chunked',
  'truncate-unframed',
  'garbage',
  'status=502',
  'status=504',
  '503-after',
]);

/** Statuses by which the backend says that it did not execute: the key is free again. */
const RELEASE_STATUSES = [401, 429];
/** Statuses after which the key is in doubt. */
const UNKNOWN_STATUSES = [502, 503, 504];
/** A call that begins before a key expires must end before it does. */
const EXPIRY_MARGIN_MS = 15_000;

/** Merchants who send payouts, each under a new key, and retry as the interface recommends. */
export class Merchants {
  readonly lives: Life[] = [];
  readonly #history: History;
  readonly #random: Random;
  readonly #options: MerchantOptions;
  readonly #targets: readonly Target[];
  readonly #clients: Client[];
  readonly #open = new Set<Life>();
  readonly #byScope = new Map<string, Life>();
  #calls = 0;
  #turn = 0;
  #paying = false;
  #closed = false;
  #arrivals: Promise<void> = Promise.resolve();

  constructor(history: History, random: Random, targets: readonly Target[], options: MerchantOptions) {
    this.#history = history;
    this.#random = random;
    this.#targets = targets;
    this.#options = options;
    this.#clients = targets.map(({ port }) => new Client(port));
  }

  get calls(): number {
    return this.#calls;
  }

  /** Keys whose merchants still try. */
  get open(): readonly Life[] {
    return [...this.#open];
  }

  start(): void {
    this.#paying = true;
    this.#arrivals = this.#arrive();
  }

  /** Starts no new keys; resolves when every merchant has finished its retries. */
  async stop(): Promise<void> {
    this.#paying = false;
    await this.#arrivals;
    while (this.#open.size > 0) await sleep(20);
  }

  /** Stops at once: merchants that wait for an answer get none, and send no more requests. */
  async close(): Promise<void> {
    this.#closed = true;
    await Promise.all(this.#clients.map((client) => client.close()));
    await this.stop();
  }

  /** @param scope merchant and key, separated by a space */
  lifeOf(scope: string): Life | undefined {
    return this.#byScope.get(scope);
  }

  /** A payout under a new key. Every merchant uses the same key names. */
  newLife(action: Payout['action'] = 'withdraw'): Life {
    const number = this.lives.length;
    const merchant = MERCHANTS[number % MERCHANTS.length] as string;
    const payout: Payout = {
      action,
      merchant,
      key: `payout-${Math.floor(number / MERCHANTS.length)}`,
      amount: this.#random.between(100, 900) / 100,
      account: String(1_000_000_000 + number),
    };
    const life: Life = { payout, known: 'nothing', isOver: false, newFromMs: Number.POSITIVE_INFINITY };
    this.lives.push(life);
    this.#byScope.set(`${merchant} ${payout.key}`, life);
    return life;
  }

  /** Sends one request with this key to one gateway. */
  async call(life: Life, as: As, at: number, more: Partial<CallOptions> & { part?: number } = {}) {
    const { payout } = life;
    const target = this.#targets[at % this.#targets.length] as Target;
    const client = this.#clients[at % this.#clients.length] as Client;
    const scope = `${payout.merchant} ${payout.key}`;
    const id = this.#calls++;
    const { fault, part, ...options } = more;
    const { number: gateway, life: processLife } = target;
    life.newFromMs = Math.min(life.newFromMs, performance.now() + target.retentionMs);
    this.#history.add({
      event: 'call',
      id,
      atMs: this.#history.nowMs(),
      scope,
      gateway,
      life: processLife,
      as,
      ...(fault === undefined ? {} : { fault }),
    });
    const secret = this.#random.pick(SECRETS[payout.merchant] ?? []);
    const all = { secret, fault, timeoutMs: this.#options.callTimeoutMs, ...options };
    const sent = as === 'other_amount' ? { ...payout, amount: payout.amount + 1 } : payout;
    const ended = await (part === undefined ? client.pay(sent, all) : client.payInPart(sent, all, part));
    this.#history.add({ event: 'ended', id, atMs: this.#history.nowMs(), scope, ended });
    if (as !== 'other_amount') learn(life, ended);
    return ended;
  }

  /** Sends to the next gateway in turn; skips a gateway that refuses the connection, as a load balancer does. */
  async callInTurn(life: Life, as: As, more: Partial<CallOptions> & { part?: number } = {}): Promise<Ended> {
    let ended: Ended = { kind: 'no_answer', reason: 'no gateway' };
    for (const _ of this.#targets) {
      ended = await this.call(life, as, this.#turn++, more);
      if (ended.kind !== 'no_answer' || ended.reason !== 'ECONNREFUSED') break;
    }
    return ended;
  }

  /** Starts new keys at a fixed rate, without waiting for the earlier ones. */
  async #arrive(): Promise<void> {
    const startedMs = performance.now();
    let due = 0;
    while (this.#paying) {
      const wanted = ((performance.now() - startedMs) / 1000) * this.#options.ratePerS;
      for (; due < wanted; due++) {
        if (this.#open.size < this.#options.maxOpen) void this.#live(this.newLife());
      }
      await sleep(5);
    }
  }

  async #live(life: Life): Promise<void> {
    this.#open.add(life);
    try {
      await this.#first(life);
      for (const ms of RETRY_AFTER_MS) {
        if (life.known === 'result' || this.#closed) break;
        await sleep(ms);
        if (!mayAsk(life)) break;
        await this.callInTurn(life, 'merchant');
      }
      if (life.known === 'result' && !this.#closed && mayAsk(life)) await this.#afterwards(life);
    } finally {
      this.#open.delete(life);
    }
  }

  /** The first request. Some merchants abort it, some send it twice at once. */
  async #first(life: Life): Promise<void> {
    const random = this.#random;
    const fault = this.#fault();
    const kind = random.next();
    if (kind < 0.03) await this.callInTurn(life, 'merchant', { fault, part: random.next() });
    else if (kind < 0.06)
      await this.callInTurn(life, 'merchant', { fault, hangUpAfterMs: random.between(1, 40) });
    else if (kind < 0.12) {
      await Promise.all([
        this.callInTurn(life, 'merchant', { fault }),
        this.callInTurn(life, 'duplicate', { fault }),
      ]);
    } else await this.callInTurn(life, 'merchant', { fault });
  }

  #fault(): string | undefined {
    let dice = this.#random.between(0, 999);
    for (const [perThousand, fault] of FAULTS) {
      dice -= perThousand;
      if (dice < 0) return fault;
    }
    return undefined;
  }

  /** Some merchants repeat the request, and some use the key for another payout by mistake. */
  async #afterwards(life: Life): Promise<void> {
    if (this.#random.chance(0.1)) await this.callInTurn(life, 'duplicate');
    if (this.#random.chance(0.05)) await this.callInTurn(life, 'other_amount');
  }
}

function learn(life: Life, ended: Ended): void {
  if (isCompleted(ended)) life.known = 'result';
  else if (life.known !== 'result' && isInDoubt(ended)) life.known = 'in_doubt';
}

/** Whether another request with the key still means the same payout. A key in doubt does not expire during a run. */
export const mayAsk = ({ isOver, known, newFromMs }: Life): boolean =>
  !isOver && (known === 'in_doubt' || performance.now() < newFromMs - EXPIRY_MARGIN_MS);

/** A final answer: every later one must be equal to it. */
export const isCompleted = (ended: Ended): boolean =>
  ended.kind === 'result' &&
  !RELEASE_STATUSES.includes(ended.status) &&
  !UNKNOWN_STATUSES.includes(ended.status);

export const isInDoubt = (ended: Ended): boolean =>
  ended.kind === 'problem' && ended.code === 'outcome_unknown';
