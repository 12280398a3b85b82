import { setTimeout as sleep } from 'node:timers/promises';
import type { IdempotencyRecord, Settlement } from '../../src/idempotency/record.ts';
import {
  type Claim,
  type ClaimRequest,
  type Fenced,
  type Owner,
  type Store,
  type StoreHealth,
  StoreUnavailable,
} from '../../src/idempotency/store.ts';
import type { Fingerprint, Scope } from '../../src/kernel/brands.ts';

type Write =
  | 'claim'
  | 'begin'
  | 'takeOver'
  | 'renew'
  | 'settle'
  | 'release'
  | 'markInDoubt'
  | 'list'
  | 'resolve';

interface Fault {
  /** `before`: the write never happens. `after`: it happens, and its answer is lost. The others take `ms` longer. */
  when: 'before' | 'after' | 'late' | 'answered late';
  times: number;
  ms: number;
}

/** A real store behind a line that fails on demand. */
export class FaultyStore implements Store {
  /** How often each write was asked for. */
  readonly asked: Record<Write, number> = {
    claim: 0,
    begin: 0,
    takeOver: 0,
    renew: 0,
    settle: 0,
    release: 0,
    markInDoubt: 0,
    list: 0,
    resolve: 0,
  };
  readonly #store: Store;
  readonly #faults = new Map<Write, Fault>();

  constructor(store: Store) {
    this.#store = store;
  }

  /** The next `times` of `write` throw StoreUnavailable: before they have happened, or after. */
  fail(write: Write, when: 'before' | 'after', times = Number.POSITIVE_INFINITY): void {
    this.#faults.set(write, { when, times, ms: 0 });
  }

  /** Each `write` happens that much later; or it happens at once, and its answer comes later. */
  delay(write: Write, ms: number, when: 'late' | 'answered late' = 'late'): void {
    this.#faults.set(write, { when, times: Number.POSITIVE_INFINITY, ms });
  }

  heal(): void {
    this.#faults.clear();
  }

  claim = (request: ClaimRequest): Promise<Claim> => this.#through('claim', () => this.#store.claim(request));
  begin = (owner: Owner): Promise<Fenced> => this.#through('begin', () => this.#store.begin(owner));
  takeOver = (heir: Owner, fingerprint: Fingerprint): Promise<'ok' | 'changed'> =>
    this.#through('takeOver', () => this.#store.takeOver(heir, fingerprint));
  renew = (owner: Owner): Promise<Fenced | 'lost'> => this.#through('renew', () => this.#store.renew(owner));
  settle = (owner: Owner, settlement: Settlement): Promise<Fenced> =>
    this.#through('settle', () => this.#store.settle(owner, settlement));
  release = (owner: Owner): Promise<Fenced> => this.#through('release', () => this.#store.release(owner));
  markInDoubt = (owner: Owner): Promise<Fenced> =>
    this.#through('markInDoubt', () => this.#store.markInDoubt(owner));
  get = (scope: Scope): Promise<IdempotencyRecord | undefined> => this.#store.get(scope);
  list: Store['list'] = (filter) => this.#through('list', () => this.#store.list(filter));
  resolve: Store['resolve'] = (...args) => this.#through('resolve', () => this.#store.resolve(...args));
  audit: Store['audit'] = (scope) => this.#store.audit(scope);
  health = (): Promise<StoreHealth> => this.#store.health();
  close = (): Promise<void> => this.#store.close();

  async #through<T>(write: Write, work: () => Promise<T>): Promise<T> {
    this.asked[write]++;
    const fault = this.#faults.get(write);
    if (!fault || fault.times <= 0) return await work();
    fault.times--;
    if (fault.when === 'late') await sleep(fault.ms);
    if (fault.when === 'before') throw new StoreUnavailable(`${write} was not sent`);
    const answer = await work();
    if (fault.when === 'answered late') await sleep(fault.ms);
    if (fault.when === 'after') throw new StoreUnavailable(`the answer to ${write} was lost`);
    return answer;
  }
}
