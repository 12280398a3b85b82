import type { Call, EngineObserver } from './call.ts';
import { digestOf, digestOfStanding } from './digest.ts';
import type { Decision, Exchange } from './outcome.ts';
import type { Persistence } from './persistence.ts';
import type { Settlement } from './record.ts';
import type { Fenced, Owner, Store } from './store.ts';

export interface ConclusionOptions {
  retentionMs: number;
  settleRetryMs: number;
}

/** How long a late answer's log line waits for the other answer. */
const OTHER_ANSWER_MS = 60_000;

/** Writes down what became of an execution, under its owner's token. */
export class Conclusion {
  readonly #store: Store;
  readonly #persistence: Persistence;
  readonly #options: ConclusionOptions;
  readonly #observer: EngineObserver;

  constructor(store: Store, persistence: Persistence, options: ConclusionOptions, observer: EngineObserver) {
    this.#store = store;
    this.#persistence = persistence;
    this.#options = options;
    this.#observer = observer;
  }

  async write(call: Call, owner: Owner, exchange: Exchange, decision: Decision): Promise<void> {
    if (decision === 'settle') await this.#settle(call, owner, settlementOf(exchange));
    else if (decision === 'release') await this.#release(call, owner);
    else await this.#leaveInDoubt(call, owner, exchange);
  }

  /** Nothing was sent under this claim: it is released, again and again until the store answers. */
  takeBack(owner: Owner, forMs = this.#options.retentionMs): void {
    void this.#persistence.untilAnswered(() => this.#store.release(owner), forMs);
  }

  /** Nothing was sent under this token, but under an earlier one perhaps. */
  backInDoubt(owner: Owner): void {
    const write = () => this.#store.markInDoubt(owner);
    void this.#persistence.untilAnswered(write, this.#options.retentionMs);
  }

  async #leaveInDoubt(call: Call, owner: Owner, exchange: Exchange): Promise<void> {
    if (exchange.kind === 'unknown') this.#observer.inDoubt(call, exchange);
    // Left executing if this fails: once its lease has lapsed, that reads as in doubt as well.
    const marked = this.#store.markInDoubt(owner).catch(() => 'ok' as const);
    await this.#fenced('in_doubt', call, marked);
  }

  async #release(call: Call, owner: Owner): Promise<void> {
    const released = this.#store.release(owner).catch(() => {
      this.takeBack(owner);
      return 'ok' as const;
    });
    await this.#fenced('release', call, released);
  }

  /** Stores the result before one byte of it goes to the merchant; past `settleRetryMs` the merchant goes first. */
  async #settle(call: Call, owner: Owner, settlement: Settlement): Promise<void> {
    let cause: unknown;
    const write = () =>
      this.#store.settle(owner, settlement).catch((error: unknown) => {
        cause = error;
        throw error;
      });
    const settled = this.#persistence.untilAnswered(write, this.#options.retentionMs);
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<undefined>((resolve) => {
      timer = setTimeout(resolve, this.#options.settleRetryMs, undefined);
    });
    const answer = await Promise.race([settled, late]);
    clearTimeout(timer);
    if (answer === undefined) {
      this.#observer.settleLate(call, cause);
      void settled.then((later) => this.#settled(call, settlement, later));
    } else this.#settled(call, settlement, answer);
  }

  /** @param answer undefined: the store never gave one */
  #settled(call: Call, settlement: Settlement, answer: Fenced | undefined): void {
    if (answer === undefined) this.#observer.settleGivenUp(call);
    if (answer !== 'stale') return;
    this.#observer.stale('settle', call);
    void this.#tellLateAnswer(call, settlement);
  }

  async #tellLateAnswer(call: Call, settlement: Settlement): Promise<void> {
    const stands = await digestOfStanding(this.#store, call.scope, OTHER_ANSWER_MS);
    this.#observer.lateAnswer(call, digestOf(settlement), stands);
  }

  async #fenced(write: 'release' | 'in_doubt', call: Call, answer: Promise<Fenced>): Promise<void> {
    if ((await answer) === 'stale') this.#observer.stale(write, call);
  }
}

function settlementOf(exchange: Exchange): Settlement {
  if (exchange.kind === 'complete') return { kind: 'response', response: exchange.response };
  if (exchange.kind === 'oversize') return { kind: 'tombstone', status: exchange.status };
  throw new TypeError(`an exchange that ended ${exchange.kind} has no result`);
}
