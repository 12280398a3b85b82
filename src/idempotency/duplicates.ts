import type { QueueTicket } from '../backend/slots.ts';
import type { Fingerprint } from '../lib/brands.ts';
import type { Clock } from '../lib/clock.ts';
import { HashTable } from '../lib/collections.ts';
import type { Call, Result } from './call.ts';

/** The leader's result, or `lead` if the follower becomes the leader. */
type Outcome = Result | 'lead';

interface Follower {
  /** Its waiting time is over. It still waits, because the leader does not know yet whether the key is in flight. */
  overdue: boolean;
  /** It arrived before the leader asked the store last. */
  isEarly: boolean;
  end(outcome: Outcome): void;
}

/** The requests with one key and fingerprint in this process: one is the leader, the others are its followers. */
export class Lead {
  readonly fingerprint: Fingerprint;
  /** The leader waits for a slot with it. A follower that becomes the leader takes it over. */
  ticket: QueueTicket | undefined;
  #followers: Follower[] = [];
  #inFlight = false;

  constructor(fingerprint: Fingerprint) {
    this.fingerprint = fingerprint;
  }

  /** The leader knows that the key is in flight. From now on a follower whose waiting time is over gets `in_flight`. */
  setInFlight(): void {
    if (this.#inFlight) return;
    this.#inFlight = true;
    const overdue = this.#followers.filter((follower) => follower.overdue);
    this.#followers = this.#followers.filter((follower) => !follower.overdue);
    for (const { end } of overdue) end({ kind: 'in_flight' });
  }

  /** Waits for the leader for `ms`, or longer, until the leader knows whether the key is in flight. */
  follow(clock: Clock, ms: number, gone: AbortSignal | undefined): Promise<Outcome> {
    return new Promise((resolve) => {
      const leave = () => {
        this.#followers = this.#followers.filter((other) => other !== follower);
        follower.end({ kind: 'in_flight' });
      };
      const onTimeout = () => {
        if (this.#inFlight) leave();
        else follower.overdue = true;
      };
      const cancel = ms > 0 ? clock.after(ms, onTimeout) : undefined;
      const follower: Follower = {
        overdue: false,
        isEarly: false,
        end: (outcome) => {
          cancel?.();
          gone?.removeEventListener('abort', leave);
          resolve(outcome);
        },
      };
      this.#followers.push(follower);
      gone?.addEventListener('abort', leave);
      if (gone?.aborted) leave();
      else if (ms <= 0) onTimeout();
    });
  }

  asks(): void {
    for (const follower of this.#followers) follower.isEarly = true;
  }

  endAll(result: Result): void {
    for (const { end } of this.#followers.splice(0)) end(result);
  }

  /** Ends the waiting of the followers that arrived before the leader asked the store. */
  endEarly(result: Result): void {
    const early = this.#followers.filter(({ isEarly }) => isEarly);
    this.#followers = this.#followers.filter(({ isEarly }) => !isEarly);
    for (const { end } of early) end(result);
  }

  /** Makes the follower that has waited longest the leader. Returns false if there is none. */
  promote(): boolean {
    const next = this.#followers.shift();
    this.#inFlight = false;
    next?.end('lead');
    return next !== undefined;
  }
}

/**
 * Makes duplicates within one process single-flight. They cost the store no more than one request: only the leader sends commands,
 * and its followers share the result.
 */
export class Duplicates {
  readonly #clock: Clock;
  readonly #leads = new HashTable<Lead>();
  #following = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Requests that wait for a leader of this process. */
  get following(): number {
    return this.#following;
  }

  /**
   * Makes the call the leader of its key, unless the same request is running already. Then the call must follow that one.
   * A call with the same key and another fingerprint follows none: it asks the store, which answers `mismatch`.
   */
  tryLead({ recordId, fingerprint }: Call): Lead | undefined {
    const known = this.#leads.get(recordId);
    if (known?.fingerprint.equals(fingerprint)) return undefined;
    const lead = new Lead(fingerprint);
    if (!known) this.#leads.add(recordId, lead);
    return lead;
  }

  /** Waits for the leader of this key, at most `ms`: its result, or the lead. */
  async follow({ recordId, gone }: Call, ms: number): Promise<Result | Lead> {
    const lead = this.#leads.get(recordId);
    if (!lead) throw new Error('there is no leader to follow');
    this.#following++;
    const outcome = await lead.follow(this.#clock, ms, gone);
    this.#following--;
    return outcome === 'lead' ? lead : outcome;
  }

  /**
   * Ends a lead. The followers get the leader's result if they may share it. Otherwise the next follower becomes the
   * leader, so that after a release duplicates start one at a time.
   */
  handOver({ recordId, requestId }: Call, lead: Lead, result: Result | undefined): void {
    const shared = result && sharedBy(result, requestId);
    // A key in doubt may have been completed since the leader asked, and a later merchant may have got that result.
    if (shared?.kind === 'in_doubt') lead.endEarly(shared);
    else if (shared) lead.endAll(shared);
    if (lead.promote()) return;
    if (this.#leads.get(recordId) === lead) this.#leads.delete(recordId);
    lead.ticket?.leave();
    lead.ticket = undefined;
  }

  endAll(result: Result): void {
    for (const lead of this.#leads.values()) lead.endAll(result);
  }
}

/**
 * The result that a duplicate gets from its leader, unless it must ask the store itself.
 *
 * @param requestId the leader's
 */
function sharedBy(result: Result, requestId: string): Result | undefined {
  switch (result.kind) {
    case 'executed':
      if (!result.stored) return undefined;
      if (result.exchange.kind !== 'complete') return { kind: 'tombstone', requestId };
      return { kind: 'replayed', response: result.exchange.response, requestId };
    case 'in_flight':
    case 'overloaded':
      return undefined;
    default:
      return result;
  }
}
