import { setTimeout as sleep } from 'node:timers/promises';
import { type CallOptions, Client, type Payout } from './client.ts';
import type { GatewayProcess } from './gateways.ts';
import type { Call, Ended, History } from './history.ts';
import type { Random } from './random.ts';

/** One key and what its merchant knows about its outcome. */
export interface Life {
  payout: Payout;
  /** The last answer that says what became of the payout. */
  known: 'nothing' | 'result' | 'in_doubt';
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
/** The most keys without an answer, in seconds of new ones. Above it, no new keys are started. */
const MOST_OPEN_S = 20;

/** Faults of the backend, each for one request: how many in a thousand keys have it. */
const FAULTS: Record<string, number> = {
  ...{ 'delay=2000': 8, 'delay=100': 10, '500-after': 5, '500-before': 5, '429-before': 10 },
};
/** The same, but afterwards only the backend knows whether it executed the payout. */
const LOSSY_FAULTS: Record<string, number> = {
  ...{ 'execute-then-reset': 3, 'execute-then-hang': 1, refuse: 3, 'reset-before-execute': 3 },
  ...{ truncate: 2, 'truncate-chunked': 2, 'truncate-unframed': 2, garbage: 2 },
  ...{ '503-after': 5, 'status=502': 2, 'status=504': 2 },
};
export const isLossy = (fault = ''): boolean => fault in LOSSY_FAULTS;

/** Statuses by which the backend says that it did not execute, and those after which the key is in doubt. */
const NOT_FINAL = [401, 429, 502, 503, 504];

/** Merchants who send payouts, each under a new key, and retry as the interface recommends. */
export class Merchants {
  readonly lives: Life[] = [];
  readonly #history: History;
  readonly #random: Random;
  readonly #ratePerS: number;
  readonly #gateways: readonly GatewayProcess[];
  readonly #clients: Client[];
  readonly #open = new Set<Life>();
  readonly #byName = new Map<string, Life>();
  calls = 0;
  #turn = 0;
  #paying = false;
  #closed = false;
  #arrivals: Promise<void> = Promise.resolve();

  /** @param ratePerS new keys a second */
  constructor(history: History, random: Random, gateways: readonly GatewayProcess[], ratePerS: number) {
    this.#history = history;
    this.#random = random;
    this.#gateways = gateways;
    this.#ratePerS = ratePerS;
    this.#clients = gateways.map(({ port }) => new Client(port));
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

  /** @param name of the key: merchant and key, separated by a space */
  lifeOf(name: string): Life | undefined {
    return this.#byName.get(name);
  }

  /** A payout under a new key. Every merchant uses the same key names. */
  newLife(): Life {
    const number = this.lives.length;
    const merchant = MERCHANTS[number % MERCHANTS.length] as string;
    const payout: Payout = {
      merchant,
      key: `payout-${Math.floor(number / MERCHANTS.length)}`,
      amount: this.#random.between(100, 900) / 100,
      account: String(1_000_000_000 + number),
    };
    const life: Life = { payout, known: 'nothing' };
    this.lives.push(life);
    this.#byName.set(`${merchant} ${payout.key}`, life);
    return life;
  }

  /** Sends one request with this key to one gateway. */
  async call(life: Life, as: Call['as'], at: number, options: CallOptions = {}): Promise<Ended> {
    const { payout } = life;
    const { number, life: processLife } = this.#gateways[at % this.#gateways.length] as GatewayProcess;
    const client = this.#clients[number] as Client;
    this.calls++;
    const { fault } = options;
    const atMs = this.#history.nowMs();
    const secret = this.#random.pick(SECRETS[payout.merchant] ?? []);
    const sent = as === 'other_amount' ? { ...payout, amount: payout.amount + 1 } : payout;
    const ended = await client.pay(sent, secret, options);
    this.#history.add({
      ...{ event: 'call', atMs, endedAtMs: this.#history.nowMs() },
      ...{ name: `${payout.merchant} ${payout.key}`, gateway: number, life: processLife, as },
      ...(fault === undefined ? {} : { fault }),
      ended,
    });
    if (as !== 'other_amount') learn(life, ended);
    return ended;
  }

  /** Sends to the next gateway in turn; skips a gateway that refuses the connection, as a load balancer does. */
  async #callInTurn(life: Life, as: Call['as'] = 'merchant', options: CallOptions = {}): Promise<void> {
    for (const _ of this.#gateways) {
      const ended = await this.call(life, as, this.#turn++, options);
      if (ended.kind !== 'no_answer' || ended.reason !== 'ECONNREFUSED') return;
    }
  }

  /** Starts new keys at a fixed rate, without waiting for the earlier ones. */
  async #arrive(): Promise<void> {
    const startedMs = performance.now();
    let due = 0;
    while (this.#paying) {
      const wanted = ((performance.now() - startedMs) / 1000) * this.#ratePerS;
      for (; due < wanted; due++) {
        if (this.#open.size < this.#ratePerS * MOST_OPEN_S) void this.#live(this.newLife());
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
        await this.#callInTurn(life);
      }
      if (life.known === 'result' && !this.#closed) await this.#afterwards(life);
    } finally {
      this.#open.delete(life);
    }
  }

  /** The first request. Some merchants abort it, some send it twice at once. */
  async #first(life: Life): Promise<void> {
    const random = this.#random;
    const fault = this.#fault();
    const kind = random.next();
    if (kind < 0.03) await this.#callInTurn(life, 'merchant', { fault, part: random.next() });
    else if (kind < 0.06)
      await this.#callInTurn(life, 'merchant', { fault, hangUpAfterMs: random.between(1, 40) });
    else {
      const times = kind < 0.12 ? [1, 2] : [1];
      await Promise.all(times.map(() => this.#callInTurn(life, 'merchant', { fault })));
    }
  }

  #fault(): string | undefined {
    let dice = this.#random.between(0, 999);
    for (const [fault, perThousand] of Object.entries({ ...FAULTS, ...LOSSY_FAULTS })) {
      dice -= perThousand;
      if (dice < 0) return fault;
    }
    return undefined;
  }

  /** Some merchants repeat the request, and some use the key for another payout by mistake. */
  async #afterwards(life: Life): Promise<void> {
    if (this.#random.chance(0.1)) await this.#callInTurn(life);
    if (this.#random.chance(0.05)) await this.#callInTurn(life, 'other_amount');
  }
}

function learn(life: Life, ended: Ended): void {
  if (isCompleted(ended)) life.known = 'result';
  else if (life.known !== 'result' && isInDoubt(ended)) life.known = 'in_doubt';
}

/** A final answer: every later one must be equal to it. */
export const isCompleted = (ended: Ended): boolean =>
  ended.kind === 'result' && !NOT_FINAL.includes(ended.status);

export const isInDoubt = (ended: Ended): boolean =>
  ended.kind === 'problem' && ended.code === 'outcome_unknown';
