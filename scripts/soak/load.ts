import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { Pool } from 'undici';
import { type Answer, Merchant } from './merchant.ts';
import { SECRETS } from './processes.ts';

const CONNECTIONS = 64;
const TICK_MS = 10;
/** With more unanswered requests than this, the gateway does not keep up with the rate. */
const MAX_OPEN = 2_000;

export interface Counts {
  sent: number;
  balances: number;
  payouts: number;
  replays: number;
  /** Wrong answers and broken connections, by kind. */
  wrong: Record<string, number>;
}

export interface Ledger {
  payouts: number;
  duplicateKeys: unknown[];
  balanced: boolean;
}

export async function ledgerOf(sandboxUrl: string): Promise<Ledger> {
  const answer = await fetch(`${sandboxUrl}/_sandbox/ledger?limit=1`);
  const { payouts, duplicateKeys, balanced } = (await answer.json()) as Ledger;
  return { payouts, duplicateKeys, balanced };
}

/** Merchants who read balances, pay, and repeat payouts under the same key. */
export class Load {
  readonly #pool: Pool;
  readonly #merchants: Merchant[];
  #latenciesMs: number[] = [];
  #open = 0;
  /** Payouts are counted from the first one, because the ledger has them all. */
  readonly counts: Counts = { sent: 0, balances: 0, payouts: 0, replays: 0, wrong: {} };

  constructor(url: string, retentionMs: number) {
    this.#pool = new Pool(url, { connections: CONNECTIONS, keepAliveTimeout: 10_000 });
    this.#merchants = SECRETS.map((secret) => new Merchant(this.#pool, secret, retentionMs));
  }

  /** Sends one request of each kind, so that all code is loaded and all connections are open. */
  async once(): Promise<void> {
    for (const merchant of this.#merchants) {
      this.#note(await merchant.balance());
      this.#note(await merchant.pay(randomUUID()));
    }
  }

  /** Requests a second when every connection is always busy. */
  async maxRate(ms: number): Promise<number> {
    const endMs = performance.now() + ms;
    const before = this.counts.sent;
    const client = async () => {
      while (performance.now() < endMs) await this.#one();
    };
    await Promise.all(Array.from({ length: CONNECTIONS }, client));
    return Math.round(((this.counts.sent - before) * 1000) / ms);
  }

  /** Sends at a fixed rate without waiting for answers; resolves when the last answer has arrived. */
  async run(rate: number, goesOn: () => boolean): Promise<void> {
    const running = new Set<Promise<void>>();
    const startedMs = performance.now();
    let begun = 0;
    while (goesOn()) {
      const due = Math.floor(((performance.now() - startedMs) * rate) / 1000);
      for (; begun < due; begun++) {
        if (this.#open >= MAX_OPEN) {
          this.#wrong('the gateway does not keep up');
          continue;
        }
        const one = this.#one().finally(() => running.delete(one));
        running.add(one);
      }
      await sleep(TICK_MS);
    }
    await Promise.all(running);
  }

  /** Starts to record latencies. */
  beginCounting(): void {
    this.#latenciesMs = [];
  }

  /** Milliseconds. */
  latency(): { p50: number; p99: number; max: number } {
    const sorted = Float64Array.from(this.#latenciesMs).sort();
    const at = (share: number) => round(sorted[Math.floor(share * (sorted.length - 1))] ?? 0);
    return { p50: at(0.5), p99: at(0.99), max: at(1) };
  }

  async close(): Promise<void> {
    await this.#pool.close();
  }

  async #one(): Promise<void> {
    const merchant = this.#merchants[Math.floor(Math.random() * this.#merchants.length)] as Merchant;
    const dice = Math.random();
    this.#open++;
    const startedMs = performance.now();
    if (dice < 0.7) this.#note(await merchant.balance());
    else if (dice < 0.95) this.#note(await merchant.pay(randomUUID()));
    else if (dice < 0.99) this.#note(await merchant.repeat());
    // A duplicate at the same time as its original.
    else for (const answer of await merchant.payTwice()) this.#note(answer);
    // Every tenth latency is enough, and those of an hour fit into memory.
    if (this.counts.sent % 10 === 0) this.#latenciesMs.push(performance.now() - startedMs);
    this.#open--;
  }

  #note(answer: Answer): void {
    this.counts.sent++;
    if (answer.kind === 'wrong') this.#wrong(answer.what);
    else this.counts[answer.kind]++;
  }

  #wrong(what: string): void {
    this.counts.wrong[what] = (this.counts.wrong[what] ?? 0) + 1;
  }
}

const round = (ms: number): number => Math.round(ms * 100) / 100;
