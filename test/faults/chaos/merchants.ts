import { setTimeout as sleep } from 'node:timers/promises';
import { type CallOptions, Client, type Payout } from './client.ts';
import type { Ended, Event, History } from './history.ts';
import type { Random } from './random.ts';

/** Where merchants send their payouts. */
export interface Target {
  number: number;
  life: number;
  port: number;
  /** How long it keeps what it has completed. */
  retentionMs: number;
}

export interface MerchantOptions {
  /** New keys a second. */
  ratePerS: number;
  /** Keys without an answer at once; when there are so many, new ones wait. */
  maxOpen: number;
  callTimeoutMs: number;
}

type As = Extract<Event, { event: 'call' }>['as'];

/** One key and what its merchant knows of it. */
export interface Life {
  payout: Payout;
  /** The last answer that says something about the payout. */
  known: 'nothing' | 'result' | 'in_doubt';
  /** Nothing more is asked under this key. */
  isOver: boolean;
  /** From then on the key may be new again, since what was completed under it has expired (`performance.now()`). */
  newFromMs: number;
}

const SECRETS: Record<string, readonly string[]> = {
  // Two secret keys, used in turn: a rotation in the middle of the retries.
  'M-ALPHA': ['sk_sandbox_alpha', 'sk_sandbox_alpha_2'],
  'M-BRAVO': ['sk_sandbox_bravo'],
  'M-CHARLIE': ['sk_sandbox_charlie'],
};
const MERCHANTS = Object.keys(SECRETS);

/** Pauses between retries that the payment API advises. */
const RETRY_AFTER_MS = [1000, 2000, 4000];

/** Faults of the backend, each for one request; [how many in a thousand keys, the switch]. */
const FAULTS: readonly (readonly [number, string])[] = [
  [3, 'execute-then-reset'],
  [1, 'execute-then-hang'],
  [3, 'refuse'],
  [3, 'reset-before-execute'],
  [2, 'truncate'],
  [2, 'truncate-chunked'],
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
/** Those after which only the backend can know whether it has paid. */
export const LOSSY_FAULTS = new Set([
  'execute-then-reset',
  'execute-then-hang',
  'refuse',
  'reset-before-execute',
  'truncate',
  'truncate-chunked',
  'garbage',
  'status=502',
  'status=504',
]);

/** Statuses by which the backend says that it did not execute: the key is free again. */
const RELEASE_STATUSES = [401, 403, 429];
/** Statuses after which the key is in doubt. */
const UNKNOWN_STATUSES = [502, 504];
/** A call that begins before a key expires must end before it does. */
const EXPIRY_MARGIN_MS = 15_000;

/** Merchants who pay, each payout under its own key, and retry as the payment API advises. */
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

  /** No new keys; resolves when every merchant has ended its retries. */
  async stop(): Promise<void> {
    this.#paying = false;
    await this.#arrivals;
    while (this.#open.size > 0) await sleep(20);
  }

  /** At once: a merchant that still waits for an answer gets none, and asks no more. */
  async close(): Promise<void> {
    this.#closed = true;
    await Promise.all(this.#clients.map((client) => client.close()));
    await this.stop();
  }

  /** @param scope merchant and key, with a space between */
  lifeOf(scope: string): Life | undefined {
    return this.#byScope.get(scope);
  }

  /** A payout under an unused key. The key's name is used by every merchant. */
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

  /** One request of a life to one gateway. */
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

  /** The next gateway in turn; one that refuses the connection is passed over, as a load balancer does. */
  async callInTurn(life: Life, as: As, more: Partial<CallOptions> & { part?: number } = {}): Promise<Ended> {
    let ended: Ended = { kind: 'no_answer', reason: 'no gateway' };
    for (const _ of this.#targets) {
      ended = await this.call(life, as, this.#turn++, more);
      if (ended.kind !== 'no_answer' || ended.reason !== 'ECONNREFUSED') break;
    }
    return ended;
  }

  /** At a fixed rate, whatever becomes of those who came before. */
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

  /** The first request, which some break off, or send twice at once. */
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

  /** Some ask again, and some take the key for another payout by mistake. */
  async #afterwards(life: Life): Promise<void> {
    if (this.#random.chance(0.1)) await this.callInTurn(life, 'duplicate');
    if (this.#random.chance(0.05)) await this.callInTurn(life, 'other_amount');
  }
}

function learn(life: Life, ended: Ended): void {
  if (isCompleted(ended)) life.known = 'result';
  else if (life.known !== 'result' && isInDoubt(ended)) life.known = 'in_doubt';
}

/** Whether another request under the key means the same payout. A key in doubt is never new. */
export const mayAsk = ({ isOver, known, newFromMs }: Life): boolean =>
  !isOver && (known === 'in_doubt' || performance.now() < newFromMs - EXPIRY_MARGIN_MS);

/** An answer that every later one has to equal. */
export const isCompleted = (ended: Ended): boolean =>
  ended.kind === 'result' &&
  !RELEASE_STATUSES.includes(ended.status) &&
  !UNKNOWN_STATUSES.includes(ended.status);

export const isInDoubt = (ended: Ended): boolean =>
  ended.kind === 'problem' && ended.code === 'outcome_unknown';
